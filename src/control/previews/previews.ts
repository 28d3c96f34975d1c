import type { Caller, OrgActor } from '../../domain/orgs/caller.ts'
import { asId, type PreviewId, type SandboxId } from '../../domain/ids.ts'
import { formatPreviewSecret, hashSecret } from '../../domain/orgs/api-key.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest } from '../../domain/refusal.ts'
import { PREVIEWS_MAX, previewUrl, type Preview, type PreviewAccess } from '../../domain/previews/preview.ts'
import * as previews from '../../store/previews/previews.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, ControlSettings, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { getSummary, type SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { previewTopic } from '../topics.ts'

type PreviewDeps = WriteDeps & SandboxReader & { readonly settings: Pick<ControlSettings, 'previews'> }

export type NewPreview = {
  readonly sandbox_id: SandboxId
  readonly port: number
  readonly access: PreviewAccess
  readonly expires_at: Date | null
}

/** A preview with its URL. A link's secret is only in the URL that its creation returns. */
export type ShownPreview = Omit<Preview, 'org_id'> & { readonly url: string }

/**
 * Opens a port of a sandbox. Throws `sandbox_not_found`, `invalid_request` if previews are turned off or the expiry is not in the
 * future, and `quota_exceeded`.
 */
export async function createPreview(
  deps: PreviewDeps & Pick<BaseDeps, 'random'>,
  caller: Caller,
  { sandbox_id, port, access, expires_at }: NewPreview,
): Promise<ShownPreview> {
  const { org_id, actor } = caller
  const now = deps.clock.now()
  const site = siteOf(deps)
  if (expires_at !== null && expires_at <= now)
    throw invalidRequest('expires_at', expires_at.toISOString(), 'an instant in the future')
  const { slug, name } = await getSummary(deps, caller, { id: sandbox_id })
  const secret = access === 'link' ? formatPreviewSecret(deps.random.bytes(32)) : null
  const id = asId<PreviewId>(deps.uuids.next())
  const preview: Preview = { id, org_id, sandbox_id, port, access, expires_at, created_at: now }
  await deps.db.transaction(org_id, async (tx) => {
    await previews.lockCounts(tx, preview)
    await previews.removeExpired(tx, sandbox_id, now)
    if (access === 'public') requirePublic(await previews.publicUse(tx, org_id, now))
    const how = { secretSha256: secret === null ? null : hashSecret(secret), max: PREVIEWS_MAX }
    if (!(await previews.insert(tx, preview, how))) throw tooMany()
    const expiry = expires_at === null ? {} : { expires_at: expires_at.toISOString() }
    const payload = { sandbox_id, name, preview_id: id, port, access, ...expiry }
    await recordEvent(deps, tx, { org_id, actor, event_type: 'preview_created', payload })
    await notifyAtCommit(tx, [previewTopic(sandbox_id)])
  })
  return shown(preview, previewUrl(site, { port, slug }, secret))
}

/** A page of the previews of a sandbox that have not expired, the newest first. Throws `sandbox_not_found`. */
export async function listPreviews(
  deps: PreviewDeps,
  caller: Caller,
  { sandbox_id, ...input }: PageInput & { readonly sandbox_id: SandboxId },
): Promise<Page<ShownPreview>> {
  const { org_id } = caller
  const { slug } = await getSummary(deps, caller, { id: sandbox_id })
  const site = siteOf(deps)
  const of = { org_id, sandbox_id, now: deps.clock.now() }
  const page = await readPage('previews', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => previews.page(q, of, { after, count })),
  )
  return { ...page, items: page.items.map((one) => shown(one, previewUrl(site, { port: one.port, slug }))) }
}

/** Closes a port again, and ends what is open through it. Throws `sandbox_not_found` and `preview_not_found`. */
export async function revokePreview(
  deps: PreviewDeps,
  caller: Caller & OrgActor,
  { sandbox_id, id }: { readonly sandbox_id: SandboxId; readonly id: PreviewId },
): Promise<void> {
  const { org_id, actor } = caller
  const { name } = await getSummary(deps, caller, { id: sandbox_id })
  await deps.db.transaction(org_id, async (tx) => {
    const removed = await previews.remove(tx, { org_id, sandbox_id, id })
    if (removed === null) throw new Problem('preview_not_found')
    const payload = { sandbox_id, name, preview_id: id, port: removed.port, access: removed.access }
    await recordEvent(deps, tx, { org_id, actor, event_type: 'preview_revoked', payload })
    await notifyAtCommit(tx, [previewTopic(sandbox_id)])
  })
}

function siteOf({ settings }: Pick<PreviewDeps, 'settings'>) {
  const site = settings.previews?.() ?? null
  if (site !== null) return site
  throw new Problem('invalid_request', {
    message: 'invalid request: the operator has turned previews off (SANDYARD_PREVIEW_DOMAIN)',
  })
}

function shown({ id, sandbox_id, port, access, expires_at, created_at }: Preview, url: string): ShownPreview {
  return { id, sandbox_id, port, access, expires_at, created_at, url }
}

function requirePublic({ used, max }: { readonly used: number; readonly max: number | null }): void {
  if (max === null || used < max) return
  throw new Problem('quota_exceeded', {
    message: `quota exceeded: the organization may open ${String(max)} ports to everybody and has opened ${String(used)}`,
    details: {
      limit: 'max_public_previews',
      max,
      current: used,
      requested: 1,
      how_to_change: 'revoke one, use access link, or ask the operator for another plan',
    },
  })
}

function tooMany(): Problem {
  const details = {
    limit: 'previews',
    max: PREVIEWS_MAX,
    current: PREVIEWS_MAX,
    requested: 1,
    how_to_change: 'revoke some',
  }
  return new Problem('quota_exceeded', {
    message: `quota exceeded: a sandbox has at most ${String(PREVIEWS_MAX)} previews`,
    details,
  })
}
