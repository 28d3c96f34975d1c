/**
 * Checks regularly whether long-lived work is still authorized. Command channels and followed logs continue for hours
 * after their request was authorized. The transaction that takes a right away sends a notification, and the key is then
 * checked at once. A check every 30 s finds the change even if the notification is lost. All watches of one key share
 * their checks.
 */
import type { Caller } from '../../domain/orgs/caller.ts'
import type { ApiKeyId } from '../../domain/ids.ts'
import { Problem, type ProblemCode } from '../../domain/problem.ts'
import { SESSION_IDLE_MS } from '../../domain/sign-in/session.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as apiKeys from '../../store/orgs/api-keys.ts'
import type { BaseDeps } from '../deps.ts'
import { apiKeyTopic, orgTopic } from '../topics.ts'

/** Why a caller lost its rights. */
export type CallerEndReason = 'api_key_revoked' | 'api_key_expired' | 'session_ended' | 'org_suspended'

/** The abort reason of the signal of a `CallerWatch`. */
export class CallerEnded extends Error {
  readonly why: CallerEndReason
  constructor(why: CallerEndReason) {
    super(END_MESSAGES[why])
    this.why = why
  }
}

/** A watch on a caller. Call `stop` when you are done. You may call it repeatedly. */
export type CallerWatch = {
  /**
   * Aborted with a `CallerEnded` about a second after the caller lost its rights, whichever process made the change.
   */
  readonly signal: AbortSignal
  readonly stop: () => void
}

/** `outlastsSuspension`: the end of the key ends the watch, but a suspension of the organization does not. */
export type WatchOptions = { readonly outlastsSuspension: boolean }

/** Watches whether callers' keys are revoked or expire, their sessions end, or their organizations are suspended. */
export type CallerWatcher = {
  /** Starts a watch. Never throws. */
  watch(caller: Caller, options?: WatchOptions): CallerWatch
  /** How many keys are watched. */
  readonly keys: number
}
export type CallerWatchDeps = { readonly callerWatcher: CallerWatcher }

/** Maps a `CallerEnded` to the problem that refuses its request. Returns any other value unchanged. */
export function problemOfCallerEnd(reason: unknown): unknown {
  if (!(reason instanceof CallerEnded)) return reason
  return new Problem(END_PROBLEM_CODES[reason.why], {
    message: `${END_PROBLEM_CODES[reason.why]}: ${reason.message}`,
    cause: reason,
  })
}

const END_MESSAGES: Readonly<Record<CallerEndReason, string>> = {
  api_key_revoked: 'the API key was revoked',
  api_key_expired: 'the API key expired',
  session_ended: 'the session ended, or its rights changed',
  org_suspended: 'the organization was suspended',
}

const END_PROBLEM_CODES: Readonly<Record<CallerEndReason, ProblemCode>> = {
  api_key_revoked: 'invalid_api_key',
  api_key_expired: 'invalid_api_key',
  session_ended: 'invalid_api_key',
  org_suspended: 'org_suspended',
}

/** How often a key is checked without a notification, in milliseconds. A lost notification costs at most this time. */
const CHECK_EVERY_MS = 30_000
/** The pause after a failed check, in milliseconds. An unavailable database proves nothing about the key. */
const RETRY_MS = 1_000
/** The maximum number of keys that one statement checks. */
const KEYS_PER_CHECK_MAX = 256

/** One key, with all watches on it that share `outlastsSuspension`. */
type WatchedKey = WatchOptions & {
  readonly isSession: boolean
  readonly stopped: AbortController
  readonly watches: Set<AbortController>
}

/** Makes the watcher of a process. */
export function makeCallerWatcher(deps: Pick<BaseDeps, 'db' | 'clock' | 'notifications' | 'log'>): CallerWatcher {
  const lasting = new Map<ApiKeyId, WatchedKey>()
  const others = new Map<ApiKeyId, WatchedKey>()
  const watchedBy = ({ outlastsSuspension }: WatchOptions): Map<ApiKeyId, WatchedKey> =>
    outlastsSuspension ? lasting : others
  const readState = makeBatch<ApiKeyId, apiKeys.KeyState | null>({
    async run(ids) {
      const found = await deps.db.asSystem((q) => apiKeys.keyStates(q, ids, SESSION_IDLE_MS))
      const byId = new Map(found.map((state) => [state.id, state]))
      return ids.map((id) => byId.get(id) ?? null)
    },
    groupOf: () => '',
    maxItems: KEYS_PER_CHECK_MAX,
    maxInFlight: 1,
  })

  async function follow({ api_key_id, org_id }: Caller, watched: WatchedKey): Promise<void> {
    let notified = new AbortController()
    let isNotified = false
    const onNotified = (): void => {
      isNotified = true
      notified.abort()
    }
    const unsubscribes = [apiKeyTopic(api_key_id), orgTopic(org_id)].map((topic) =>
      deps.notifications.subscribe(topic, onNotified),
    )
    try {
      while (!watched.stopped.signal.aborted) {
        isNotified = false
        const { end, pauseMs } = await check(api_key_id, watched)
        if (end !== null) {
          finish(api_key_id, watched, end)
          return
        }
        if (isNotified) continue
        notified = new AbortController()
        await interruptibleSleep(deps.clock, pauseMs, notified.signal, watched.stopped.signal)
      }
    } finally {
      for (const unsubscribe of unsubscribes) unsubscribe()
    }
  }

  /** Checks a key. Returns the reason why its rights ended, or null and the time until the next check. */
  async function check(
    id: ApiKeyId,
    watched: WatchedKey,
  ): Promise<{ readonly end: CallerEndReason | null; readonly pauseMs: number }> {
    try {
      const state = await readState(id)
      const restMs = (state?.expires_at?.getTime() ?? Number.POSITIVE_INFINITY) - deps.clock.now().getTime()
      return { end: endOf(state, restMs, watched), pauseMs: Math.min(restMs, CHECK_EVERY_MS) }
    } catch (error) {
      deps.log.warn({ error, api_key_id: id }, 'could not check a key in use; will retry')
      return { end: null, pauseMs: RETRY_MS }
    }
  }

  function finish(id: ApiKeyId, watched: WatchedKey, why: CallerEndReason): void {
    forget(id, watched)
    for (const watch of watched.watches) watch.abort(new CallerEnded(why))
    watched.watches.clear()
  }

  function forget(id: ApiKeyId, watched: WatchedKey): void {
    const byKey = watchedBy(watched)
    if (byKey.get(id) === watched) byKey.delete(id)
  }

  return {
    watch(caller, options = { outlastsSuspension: false }) {
      const id = caller.api_key_id
      const own = new AbortController()
      const byKey = watchedBy(options)
      const known = byKey.get(id)
      const watched = known ?? {
        ...options,
        isSession: caller.actor.kind === 'user',
        stopped: new AbortController(),
        watches: new Set<AbortController>(),
      }
      watched.watches.add(own)
      if (watched !== known) {
        byKey.set(id, watched)
        void follow(caller, watched) // it never rejects: a failed check is logged and repeated
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
  state: apiKeys.KeyState | null,
  restMs: number,
  { outlastsSuspension, isSession }: WatchedKey,
): CallerEndReason | null {
  if (state === null || state.is_revoked) return isSession ? 'session_ended' : 'api_key_revoked'
  if (restMs <= 0) return isSession ? 'session_ended' : 'api_key_expired'
  return state.is_suspended && !outlastsSuspension ? 'org_suspended' : null
}
