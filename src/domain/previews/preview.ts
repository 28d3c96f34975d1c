import type { OrgId, PreviewId, SandboxId } from '../ids.ts'
import { PORT_MAX } from '../requests/request-bounds.ts'

/** Who may open a port. `link`: whoever has the link. `public`: everybody. Without a preview, only keys of the organization may. */
export const PREVIEW_ACCESSES = ['link', 'public'] as const
export type PreviewAccess = (typeof PREVIEW_ACCESSES)[number]

/** A port of a sandbox that is open to others than the keys of its organization. */
export type Preview = {
  readonly id: PreviewId
  readonly org_id: OrgId
  readonly sandbox_id: SandboxId
  readonly port: number
  readonly access: PreviewAccess
  /** Null: it lasts until it is revoked. */
  readonly expires_at: Date | null
  readonly created_at: Date
}

/** The maximum number of previews of a sandbox. */
export const PREVIEWS_MAX = 100

/** Where previews are served: the domain beneath which each port of a sandbox has its own name, and how clients reach it. */
export type PreviewSite = { readonly scheme: 'http' | 'https'; readonly domain: string; readonly port: number | null }

/** What the name of a preview means. */
export type PreviewTarget = { readonly port: number; readonly slug: string }

/** The parameter of a URL, and the cookie, with the secret of a link. */
export const LINK_PARAMETER = 'sandyard_preview'
/** The prefix of a link's secret. It lets secret scanners recognize leaked links. */
export const LINK_PREFIX = 'syp_'

const LABEL_SHAPE = /^([1-9][0-9]{0,4})-([a-z0-9]+(?:-[a-z0-9]+)*)$/

/** The host and port of a preview, such as `3000-quiet-otter.localhost:8080`. */
export function previewHost({ domain, port }: PreviewSite, target: PreviewTarget): string {
  return `${String(target.port)}-${target.slug}.${domain}${port === null ? '' : `:${String(port)}`}`
}

/** The URL of a preview. With `secret`, it opens the preview. */
export function previewUrl(site: PreviewSite, target: PreviewTarget, secret: string | null = null): string {
  const query = secret === null ? '' : `?${LINK_PARAMETER}=${secret}`
  return `${site.scheme}://${previewHost(site, target)}/${query}`
}

/**
 * What the `Host` header of a request names: a preview, nothing beneath the domain of previews (`other`), or a name there that is no
 * preview.
 */
export function parsePreviewHost(host: string, domain: string): PreviewTarget | 'other' | 'invalid' {
  const name = host.replace(/:\d*$/, '').replace(/\.$/, '').toLowerCase()
  if (!name.endsWith(`.${domain}`)) return 'other'
  const match = LABEL_SHAPE.exec(name.slice(0, -domain.length - 1))
  const [, port = '', slug = ''] = match ?? []
  return match === null || Number(port) > PORT_MAX ? 'invalid' : { port: Number(port), slug }
}
