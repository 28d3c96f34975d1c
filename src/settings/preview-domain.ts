import type { Setting } from './setting.ts'

/** Where previews are. Null members: as this server is reached. `off`: nowhere. */
export type PreviewDomain =
  'off' | { readonly domain: string; readonly scheme: 'http' | 'https' | null; readonly port: number | null }

const SHAPE = /^(?:(https?):\/\/)?([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::([1-9][0-9]{0,4}))?\/?$/i

/** Parses the domain of previews, such as `localhost` or `https://preview.example.com:8443`. */
export const parsePreviewDomain: Setting<PreviewDomain>['parse'] = (seen) => {
  if (seen === 'off') return { value: 'off' }
  const [, scheme, domain = '', port] = SHAPE.exec(seen) ?? []
  // An address has no names beneath it.
  if (domain === '' || /^[0-9.]+$/.test(domain) || Number(port ?? 1) > 65_535)
    return { accepted: 'a domain such as preview.example.com, perhaps with https:// and a port, or off' }
  return {
    value: {
      domain: domain.toLowerCase(),
      scheme: scheme === undefined ? null : scheme.toLowerCase() === 'https' ? 'https' : 'http',
      port: port === undefined ? null : Number(port),
    },
  }
}
