import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import type { Log } from '../../../lib/log.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { ApiError, isApiError } from '../../kubernetes/api-error.ts'
import { watchObjects } from '../../kubernetes/object-watch.ts'
import { LABELS, type Pod } from './pod.ts'

/** The Pods of this worker: those with its owner label. */
export type Pods = {
  /** Resolves once they were listed. */
  readonly ready: Promise<void>
  get(name: string): Pod | undefined
  /** The last state of a Pod that was deleted while this process watched. */
  lastOf(name: string): Pod | undefined
  all(): readonly Pod[]
  /**
   * Creates a Pod. If a Pod of this worker has the name already, returns that one: the answer to an earlier request was lost. Repeats
   * the request while the API server can't be reached, until the signal aborts.
   */
  create(name: string, pod: object, signal: AbortSignal): Promise<Pod>
  /**
   * Deletes a Pod with a grace of at least a second, and resolves once the API server has it no longer: the kubelet has then ended all
   * its processes. Waits for that as long as it takes. Resolves for a Pod that is gone. `uid` null: whatever Pod of this worker
   * has the name.
   */
  delete(name: string, uid: string | null, graceMs: number): Promise<void>
  /** Resolves at the next change of a Pod. Rejects with the signal's reason. */
  changeOf(name: string, signal: AbortSignal): Promise<void>
  /** Forgets the last state of a deleted Pod. */
  forget(name: string): void
  close(): Promise<void>
}

type PodsInput = {
  readonly client: ApiClient
  readonly namespace: string
  readonly owner: string
  readonly onChange: (pod: Pod) => void
  /** Ends all waits, also those for deletions. */
  readonly signal: AbortSignal
  readonly clock: Clock
  readonly log: Log
}

const RETRY_MS = 500
/** How often a deletion is looked after, should the watch miss its end. */
const CHECK_MS = 5_000

/** Begins to watch the Pods of this worker. */
export function openPods({ client, namespace, owner, onChange, signal: closed, clock, log }: PodsInput): Pods {
  const path = `/api/v1/namespaces/${namespace}/pods`
  const lastStates = new Map<string, Pod>()
  const waiting = new Map<string, Set<() => void>>()
  const watch = watchObjects<Pod>({
    client,
    path,
    labelSelector: `${LABELS.owner}=${owner}`,
    onChange: ({ was, is }) => {
      const pod = is ?? was
      if (pod === null) return
      const { name } = pod.metadata
      if (is === null) lastStates.set(name, pod)
      for (const notify of waiting.get(name) ?? []) notify()
      onChange(pod)
    },
    clock,
    log,
  })

  const changeOf = (name: string, signal: AbortSignal): Promise<void> =>
    new Promise((resolve, reject) => {
      const either = AbortSignal.any([signal, closed])
      const done = (): void => {
        set.delete(onChanged)
        if (set.size === 0) waiting.delete(name)
        either.removeEventListener('abort', onAbort)
      }
      const onChanged = (): void => {
        done()
        resolve()
      }
      const onAbort = (): void => {
        done()
        reject(either.reason instanceof Error ? either.reason : new Error('aborted'))
      }
      const set = waiting.get(name) ?? new Set()
      waiting.set(name, set.add(onChanged))
      either.addEventListener('abort', onAbort, { once: true })
      if (either.aborted) onAbort()
    })
  /** Repeats a request while the API server has trouble of its own. */
  const persist = async <Answer>(ask: () => Promise<Answer>, signal: AbortSignal): Promise<Answer> => {
    for (;;) {
      try {
        return await ask()
      } catch (error) {
        const isTheirs = error instanceof ApiError && error.status < 500 && error.status !== 429
        if (isTheirs || signal.aborted) throw error
        log.warn({ err: error }, 'a request to the API server failed; trying again')
        await clock.sleep(RETRY_MS, signal)
      }
    }
  }
  const find = async (name: string, signal: AbortSignal): Promise<Pod | null> => {
    try {
      return await persist(() => client.request<Pod>('GET', `${path}/${name}`, undefined, { signal }), signal)
    } catch (error) {
      if (isApiError(error, 404)) return null
      throw error
    }
  }
  const isOwn = (pod: Pod): boolean => pod.metadata.labels?.[LABELS.owner] === owner

  return {
    ready: watch.ready,
    get: (name) => watch.get(name),
    lastOf: (name) => lastStates.get(name),
    all: () => watch.all(),
    async create(name, pod, signal) {
      const made = await persist(async () => {
        try {
          return await client.request<Pod>('POST', path, pod, { signal })
        } catch (error) {
          const found = isApiError(error, 409) ? await find(name, signal) : null
          if (found === null || !isOwn(found) || found.metadata.deletionTimestamp !== undefined) throw error
          return found
        }
      }, signal)
      watch.note(made)
      return made
    },
    async delete(name, uid, graceMs) {
      if (uid !== null && lastStates.get(name)?.metadata.uid === uid) return
      const signal = closed
      const found = uid === null ? await find(name, signal) : null
      const known = uid ?? (found !== null && isOwn(found) ? found.metadata.uid : null)
      if (known === null) return
      // Without grace, the object would go at once, while its processes go on.
      const gracePeriodSeconds = Math.max(1, Math.ceil(graceMs / 1000))
      const options = { gracePeriodSeconds, preconditions: { uid: known } }
      try {
        await persist(() => client.request('DELETE', `${path}/${name}`, options, { signal }), signal)
      } catch (error) {
        if (!isApiError(error, 404, 409)) throw error // 409: the name has another Pod by now
      }
      for (;;) {
        const seen = watch.get(name)
        if (seen?.metadata.uid !== known && (await find(name, signal))?.metadata.uid !== known) return
        const soon = new AbortController()
        await Promise.race([
          changeOf(name, AbortSignal.any([signal, soon.signal])).catch(() => undefined),
          interruptibleSleep(clock, CHECK_MS, AbortSignal.any([signal, soon.signal])),
        ])
        soon.abort()
        signal.throwIfAborted()
        if (watch.get(name)?.metadata.uid === known && (await find(name, signal))?.metadata.uid !== known) return
      }
    },
    changeOf,
    forget(name) {
      lastStates.delete(name)
    },
    close: () => watch.close(),
  }
}
