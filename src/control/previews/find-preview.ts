import { authenticate } from '../orgs/authenticate.ts'
import { includesScope, type Caller } from '../../domain/orgs/caller.ts'
import { hashSecret } from '../../domain/orgs/api-key.ts'
import type { PreviewId } from '../../domain/ids.ts'
import type { PreviewTarget } from '../../domain/previews/preview.ts'
import * as previews from '../../store/previews/previews.ts'
import type { BaseDeps } from '../deps.ts'

export type PreviewedSandbox = previews.PreviewedSandbox

/** Finds what the name of a preview leads to, as it was at most `maxAgeMs` ago. */
export type FindPreview = (target: PreviewTarget, maxAgeMs: number) => Promise<PreviewedSandbox | null>

/** Names that lead nowhere are cached too, so the number of entries needs a limit. */
const CACHED_MAX = 10_000

/** Makes the finder of a process. */
export function makeFindPreview({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): FindPreview {
  const cached = new Map<string, { readonly found: Promise<PreviewedSandbox | null>; readonly readAtMs: number }>()
  return (target, maxAgeMs) => {
    const key = `${String(target.port)}-${target.slug}`
    const nowMs = clock.monotonicMs()
    const known = cached.get(key)
    if (known !== undefined && known.readAtMs > nowMs - maxAgeMs) return known.found
    if (cached.size >= CACHED_MAX) cached.clear()
    const found = db.asSystem((q) => previews.findTarget(q, target))
    cached.set(key, { found, readAtMs: nowMs })
    found.catch(() => cached.delete(key))
    return found
  }
}

/** What a request brings to open a preview. */
export type PreviewCredentials = {
  /** An API key, or null. */
  readonly key: string | null
  /** The secret of a link, or null. */
  readonly secret: string | null
  /** Called before a key is looked up that isn't known yet. If it throws, it isn't looked up. */
  readonly onUnknownKey: () => void
}

/**
 * By which right a request opens a preview: a key of the organization, or a preview that exists. `until`: milliseconds
 * since 1970, or null.
 */
export type PreviewRight =
  | { readonly by: 'key'; readonly caller: Caller }
  | { readonly by: 'preview'; readonly id: PreviewId; readonly until: number | null; readonly isLink: boolean }

/**
 * Decides whether a request may open a preview. `right` is null if it may not: a sandbox that doesn't exist looks like one that is
 * closed to it. `hasKey`: its credential is a key of this service, which no sandbox may see.
 */
export async function rightToPreview(
  deps: Parameters<typeof authenticate>[0],
  sandbox: PreviewedSandbox | null,
  { key, secret, onUnknownKey }: PreviewCredentials,
): Promise<{ readonly right: PreviewRight | null; readonly hasKey: boolean }> {
  const caller = key === null ? null : await authenticate(deps, key, onUnknownKey)
  const hasKey = caller !== null || key?.startsWith(KEY_PREFIX) === true
  if (sandbox === null || sandbox.is_org_suspended) return { right: null, hasKey }
  if (caller !== null && caller.org_id === sandbox.org_id && includesScope(caller.scope, 'write'))
    return { right: { by: 'key', caller }, hasKey }
  const nowMs = deps.clock.now().getTime()
  const open = sandbox.previews.filter(({ until }) => until === null || until > nowMs)
  const hash = secret === null ? null : hashSecret(secret).toString('hex')
  const linked = open.find((one) => one.secret !== null && one.secret === hash)
  const found = linked ?? open.find((one) => one.secret === null)
  const right =
    found === undefined
      ? null
      : ({ by: 'preview', id: found.id, until: found.until, isLink: found === linked } as const)
  return { right, hasKey }
}

const KEY_PREFIX = 'msb_'
