import type { Config } from '../../config.ts'
import type { PreviewSite } from '../../domain/previews/preview.ts'

/** Where this server serves previews. */
export type PreviewSites = {
  /** Null: nowhere. */
  readonly domain: string | null
  /** How clients reach previews. Null: nowhere. */
  site(): PreviewSite | null
  /** Tells on which port the server listens. */
  listensOn(port: number): void
}

/** Reads where previews are. Throws if they would share a host with the API: then cookies of sandboxes would reach it. */
export function makePreviewSites(
  { previewDomain, advertiseUrl }: Pick<Config, 'previewDomain' | 'advertiseUrl'>,
  transport: 'http' | 'https',
): PreviewSites {
  if (previewDomain === 'off') return { domain: null, site: () => null, listensOn: () => undefined }
  const { domain, scheme, port } = previewDomain
  const own = advertiseUrl === null ? null : new URL(advertiseUrl).hostname
  if (own !== null && (own.endsWith(`.${domain}`) || (own === domain && domain !== 'localhost')))
    throw new Error(
      `SANDYARD_PREVIEW_DOMAIN is ${domain}, and the API is at ${own}: a sandbox could set cookies for the API; choose a domain of its own`,
    )
  let listening: number | null = null
  // A domain with a scheme is reached through a proxy, at the usual port of the scheme.
  const usual = scheme === null ? () => listening : () => null
  return {
    domain,
    site: () => ({ domain, scheme: scheme ?? transport, port: port ?? usual() }),
    listensOn(actual) {
      listening = actual
    },
  }
}
