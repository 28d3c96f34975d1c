/**
 * Authorization is decided when a request arrives; what goes on for hours afterwards (a command channel, a log that is
 * followed) has it looked at again here. A wake-up in the transaction of the change makes that prompt, and a look every
 * 30 s correct without it. All that watch one key for the same share one look.
 */
import type { Caller } from '../../domain/orgs/caller.ts'
import type { ApiKeyId, OrgId } from '../../domain/ids.ts'
import { Problem, type ProblemCode } from '../../domain/problem.ts'
import { makeBatch } from '../../lib/batch.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { CallerWatcher, ControlDeps } from '../deps.ts'

/** Why a caller may not go on. */
export type CallerEndReason = 'api_key_revoked' | 'api_key_expired' | 'org_suspended'

/** The reason of the signal of a `CallerWatch`. */
export class CallerEnded extends Error {
  readonly why: CallerEndReason
  constructor(why: CallerEndReason) {
    super(END_MESSAGES[why])
    this.why = why
  }
}

/** A caller that is watched until `stop`, which may be repeated and which who watches must call. */
export type CallerWatch = {
  /** Aborted, with a `CallerEnded`, about a second after the caller may not go on, whichever process took its right. */
  readonly signal: AbortSignal
  readonly stop: () => void
}

/** `outlastsSuspension`: what is watched may go on while the organization is suspended; the key ends it all the same. */
export type WatchOptions = { readonly outlastsSuspension: boolean }

/** Watches whether a caller's key is revoked or expires, or its organization is suspended. Never throws. */
export function watchCaller(
  deps: Pick<ControlDeps, 'callerWatches'>,
  caller: Caller,
  options?: WatchOptions,
): CallerWatch {
  return deps.callerWatches.watch(caller, options)
}

/** What a request is refused with whose caller's right ended while it was being served; anything else as it is. */
export function problemOfCallerEnd(reason: unknown): unknown {
  if (!(reason instanceof CallerEnded)) return reason
  return new Problem(END_PROBLEM_CODES[reason.why], {
    message: `${END_PROBLEM_CODES[reason.why]}: ${reason.message}`,
    cause: reason,
  })
}

/** The topic of a key's wake-ups, to be written by the transaction that revokes it. */
export function apiKeyTopic(id: ApiKeyId): string {
  return `api_key:${id}`
}

/** The topic of an organization's standing, to be written by the transaction that suspends it. */
export function orgStateTopic(id: OrgId): string {
  return `standing:${id}`
}

const END_MESSAGES: Readonly<Record<CallerEndReason, string>> = {
  api_key_revoked: 'the API key was revoked',
  api_key_expired: 'the API key expired',
  org_suspended: 'the organization was suspended',
}

const END_PROBLEM_CODES: Readonly<Record<CallerEndReason, ProblemCode>> = {
  api_key_revoked: 'invalid_api_key',
  api_key_expired: 'invalid_api_key',
  org_suspended: 'org_suspended',
}

/** How often a key is looked at without being woken, in milliseconds: what a lost wake-up costs. */
const CHECK_EVERY_MS = 30_000
/** The pause after a look that failed: the database is away, which says nothing about the key. */
const RETRY_MS = 1_000
/** The most keys that one statement looks at. */
const KEYS_PER_CHECK_MAX = 256

/** All that watch one key for the same ends. */
type WatchedKey = WatchOptions & { readonly stopped: AbortController; readonly watches: Set<AbortController> }

/** The watches of a process. */
export function makeCallerWatcher(deps: Pick<ControlDeps, 'db' | 'clock' | 'notifications' | 'log'>): CallerWatcher {
  const lasting = new Map<ApiKeyId, WatchedKey>()
  const others = new Map<ApiKeyId, WatchedKey>()
  const alike = ({ outlastsSuspension }: WatchOptions): Map<ApiKeyId, WatchedKey> =>
    outlastsSuspension ? lasting : others
  const look = makeBatch<ApiKeyId, apiKeys.KeyState | null>({
    async run(ids) {
      const found = await deps.db.asSystem((q) => apiKeys.keyStates(q, ids))
      const byId = new Map(found.map((standing) => [standing.id, standing]))
      return ids.map((id) => byId.get(id) ?? null)
    },
    groupOf: () => '',
    maxItems: KEYS_PER_CHECK_MAX,
    maxInFlight: 1,
  })

  async function follow({ api_key_id, org_id }: Caller, watched: WatchedKey): Promise<void> {
    let woken = new AbortController()
    let isWoken = false
    const wakeUp = (): void => {
      isWoken = true
      woken.abort()
    }
    const unsubscribes = [apiKeyTopic(api_key_id), orgStateTopic(org_id)].map((topic) => deps.notifications.subscribe(topic, wakeUp)) // prettier-ignore
    try {
      while (!watched.stopped.signal.aborted) {
        isWoken = false
        const { end, pauseMs } = await see(api_key_id, watched)
        if (end !== null) {
          finish(api_key_id, watched, end)
          return
        }
        if (isWoken) continue
        woken = new AbortController()
        await interruptibleSleep(deps.clock, pauseMs, AbortSignal.any([woken.signal, watched.stopped.signal]))
      }
    } finally {
      for (const unsubscribe of unsubscribes) unsubscribe()
    }
  }

  /** Whether a key's right has ended, or else for how long it need not be looked at. */
  async function see(
    id: ApiKeyId,
    options: WatchOptions,
  ): Promise<{ readonly end: CallerEndReason | null; readonly pauseMs: number }> {
    try {
      const standing = await look(id)
      const restMs = (standing?.expires_at?.getTime() ?? Number.POSITIVE_INFINITY) - deps.clock.now().getTime()
      return { end: endOf(standing, restMs, options), pauseMs: Math.min(restMs, CHECK_EVERY_MS) }
    } catch (error) {
      deps.log.warn({ err: error, api_key_id: id }, 'a key in use could not be looked at')
      return { end: null, pauseMs: RETRY_MS }
    }
  }

  function finish(id: ApiKeyId, watched: WatchedKey, why: CallerEndReason): void {
    forget(id, watched)
    for (const watch of watched.watches) watch.abort(new CallerEnded(why))
    watched.watches.clear()
  }

  function forget(id: ApiKeyId, watched: WatchedKey): void {
    const byKey = alike(watched)
    if (byKey.get(id) === watched) byKey.delete(id)
  }

  return {
    watch(caller, options = { outlastsSuspension: false }) {
      const id = caller.api_key_id
      const own = new AbortController()
      const byKey = alike(options)
      const known = byKey.get(id)
      const watched = known ?? { ...options, stopped: new AbortController(), watches: new Set<AbortController>() }
      watched.watches.add(own)
      if (watched !== known) {
        byKey.set(id, watched)
        void follow(caller, watched) // it never rejects: a failed look is reported and repeated
      }
      return {
        signal: own.signal,
        stop() {
          if (!watched.watches.delete(own) || watched.watches.size > 0) return
          watched.stopped.abort()
          forget(id, watched)
        },
      }
    },
    get keys() {
      return new Set([...lasting.keys(), ...others.keys()]).size
    },
  }
}

function endOf(
  standing: apiKeys.KeyState | null,
  restMs: number,
  { outlastsSuspension }: WatchOptions,
): CallerEndReason | null {
  if (standing === null || standing.is_revoked) return 'api_key_revoked'
  if (restMs <= 0) return 'api_key_expired'
  return standing.is_suspended && !outlastsSuspension ? 'org_suspended' : null
}
