import type { BaseDeps } from '../control/deps.ts'
import type { FindPreview } from '../control/previews/find-preview.ts'
import { previewTopic } from '../control/topics.ts'
import type { PreviewId, SandboxId } from '../domain/ids.ts'
import type { PreviewTarget } from '../domain/previews/preview.ts'
import { interruptibleSleep, NOTIFIED } from '../lib/clock.ts'

/**
 * How long what was read of a preview lets requests through: a page asks for a hundred files at once. A request that takes longer is
 * checked again after this time. So a revocation ends all of them within a second, also those that began on an older reading.
 */
export const KNOWN_MS = 500
/** How often a preview is checked without a notification, in milliseconds. A lost notification costs at most this time. */
const CHECK_EVERY_MS = 30_000
/** The pause after a failed check, in milliseconds. An unavailable database proves nothing about the preview. */
const RETRY_MS = 1_000

type WatchDeps = Pick<BaseDeps, 'clock' | 'log' | 'notifications'> & { readonly find: FindPreview }

/** A preview by which a request was let through. `until`: milliseconds since 1970, or null. */
type Watched = {
  readonly id: PreviewId
  readonly until: number | null
  readonly sandbox_id: SandboxId
  readonly target: PreviewTarget
}

/** Watches whether a preview lasts: the signal is aborted once it expires or is revoked. Call `stop` when you are done. Never throws. */
export function watchPreview(
  deps: WatchDeps,
  watched: Watched,
): { readonly signal: AbortSignal; readonly stop: () => void } {
  const ended = new AbortController()
  const stopped = new AbortController()
  void follow(deps, watched, { ended, stopped: stopped.signal }) // it never rejects: a failed check is logged and repeated
  return {
    signal: ended.signal,
    stop: () => {
      stopped.abort(NOTIFIED)
    },
  }
}

async function follow(
  deps: WatchDeps,
  watched: Watched,
  { ended, stopped }: { readonly ended: AbortController; readonly stopped: AbortSignal },
): Promise<void> {
  const { clock, notifications } = deps
  const { until, sandbox_id } = watched
  const leftMs = (): number => (until ?? Infinity) - clock.now().getTime()
  let notified = new AbortController()
  const unsubscribe = notifications.subscribe(previewTopic(sandbox_id), () => {
    notified.abort(NOTIFIED)
  })
  try {
    for (let pauseMs = KNOWN_MS; ;) {
      await interruptibleSleep(clock, Math.min(pauseMs, leftMs()), notified.signal, stopped)
      if (stopped.aborted) return
      if (leftMs() <= 0) return ended.abort(new Error('the preview expired'))
      // What was read before a notification, or before this watch, doesn't count.
      const maxAgeMs = notified.signal.aborted ? 0 : KNOWN_MS
      if (notified.signal.aborted) notified = new AbortController()
      const isThere = await check(deps, watched, maxAgeMs)
      if (isThere === false) return ended.abort(new Error('the preview was revoked'))
      pauseMs = isThere === null ? RETRY_MS : CHECK_EVERY_MS
    }
  } finally {
    unsubscribe()
  }
}

/** Whether the preview exists. Null: unknown. */
async function check(
  { find, log }: WatchDeps,
  { id, target, sandbox_id }: Watched,
  maxAgeMs: number,
): Promise<boolean | null> {
  try {
    const found = await find(target, maxAgeMs)
    return found?.previews.some((one) => one.id === id) === true
  } catch (error) {
    log.warn({ error, sandbox_id }, 'could not check a preview in use; will retry')
    return null
  }
}
