import { interruptibleSleep, type Clock } from '../../../lib/clock.ts'
import { joinSignals } from '../../../lib/join-signals.ts'
import type { Log } from '../../../lib/log.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { isApiError } from '../../kubernetes/api-error.ts'
import { persistRequest } from '../../kubernetes/persist-request.ts'
import { watchObjects } from '../../kubernetes/object-watch.ts'
import { LABELS, type Pod, type PodName } from './pod.ts'

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
  create(target: PodName, pod: object, signal: AbortSignal): Promise<Pod>
  /**
   * Deletes a Pod with a grace of at least a second, and resolves once the API server has it no longer: the kubelet has then ended all
   * its processes. Waits for that as long as it takes. Resolves for a Pod that is gone. `uid` null: whatever Pod of this worker
   * has the name.
   */
  delete(target: PodName, uid: string | null, graceMs: number): Promise<void>
  /** Resolves at the next change of a Pod. Rejects with the signal's reason. */
  changeOf(name: string, signal: AbortSignal): Promise<void>
  /** Forgets the last state of a deleted Pod. */
  forget(name: string): void
  close(): Promise<void>
}

type PodsInput = {
  readonly client: ApiClient
  /** The path of the Pods to watch: those of a namespace, or of all. */
  readonly path: string
  readonly owner: string
  readonly onChange: (pod: Pod) => void
  /** Ends all waits, also those for deletions. */
  readonly signal: AbortSignal
  readonly clock: Clock
  readonly log: Log
}

/** How often a deletion is looked after, should the watch miss its end. */
const CHECK_MS = 5_000

/** Begins to watch the Pods of this worker. */
export function openPods({ client, path, owner, onChange, signal: closed, clock, log }: PodsInput): Pods {
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
      const { signal: either, [Symbol.dispose]: leave } = joinSignals(signal, closed)
      const done = (): void => {
        set.delete(onChanged)
        if (set.size === 0) waiting.delete(name)
        leave()
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
  const find = async (pod: PodName, signal: AbortSignal): Promise<Pod | null> => {
    try {
      return await persistRequest(() => client.request<Pod>('GET', pathOf(pod), undefined, { signal }), {
        signal,
        clock,
        log,
      })
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
    async create({ namespace, name }, pod, signal) {
      const ask = async (): Promise<Pod> => {
        try {
          return await client.request<Pod>('POST', podsPath(namespace), pod, { signal })
        } catch (error) {
          const found = isApiError(error, 409) ? await find({ namespace, name }, signal) : null
          if (found === null || !isOwn(found) || found.metadata.deletionTimestamp !== undefined) throw error
          return found
        }
      }
      const made = await persistRequest(ask, { signal, clock, log })
      watch.note(made)
      return made
    },
    async delete(pod, uid, graceMs) {
      const { name } = pod
      if (uid !== null && lastStates.get(name)?.metadata.uid === uid) return
      const signal = closed
      const found = uid === null ? await find(pod, signal) : null
      const known = uid ?? (found !== null && isOwn(found) ? found.metadata.uid : null)
      if (known === null) return
      // Without grace, the object would go at once, while its processes go on.
      const gracePeriodSeconds = Math.max(1, Math.ceil(graceMs / 1000))
      const options = { gracePeriodSeconds, preconditions: { uid: known } }
      try {
        await persistRequest(() => client.request('DELETE', pathOf(pod), options, { signal }), { signal, clock, log })
      } catch (error) {
        if (!isApiError(error, 404, 409)) throw error // 409: the name has another Pod by now
      }
      for (;;) {
        const seen = watch.get(name)
        if (seen?.metadata.uid !== known && (await find(pod, signal))?.metadata.uid !== known) return
        const soon = new AbortController()
        await Promise.race([
          changeOf(name, soon.signal).catch(() => undefined), // rejects only when aborted, which is checked below
          interruptibleSleep(clock, CHECK_MS, signal, soon.signal),
        ])
        soon.abort()
        signal.throwIfAborted()
        if (watch.get(name)?.metadata.uid === known && (await find(pod, signal))?.metadata.uid !== known) return
      }
    },
    changeOf,
    forget(name) {
      lastStates.delete(name)
    },
    close: () => watch.close(),
  }
}

function podsPath(namespace: string): string {
  return `/api/v1/namespaces/${namespace}/pods`
}

function pathOf({ namespace, name }: PodName): string {
  return `${podsPath(namespace)}/${name}`
}
