import type { Clock } from '../../../../lib/clock.ts'
import { makeKeyedMutex } from '../../../../lib/turns/keyed-mutex.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/turns/repeat.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import type { ApiObject } from '../../../kubernetes/object-watch.ts'
import { createObject } from '../../../kubernetes/objects.ts'
import { policiesPath } from '../namespaces/base-policies.ts'
import { LABELS, type Pod } from '../pod.ts'
import type { RunPolicy } from './run-policy.ts'

/** The NetworkPolicies of the Pods of this worker: one for all Pods of a namespace that may reach the same. */
export type Policies = {
  /**
   * Makes a policy, unless this process has seen it in the namespace. Sends nothing otherwise. The policy stays for `IDLE_MS`, and as long as
   * a Pod has its label. Rejects with `ApiError` of status 404 if the namespace is gone.
   */
  ensure(namespace: string, policy: RunPolicy, signal: AbortSignal): Promise<void>
  /** Forgets what a namespace has, because it is gone. */
  forget(namespace: string): void
  close(): Promise<void>
}

type PoliciesInput = {
  readonly client: Pick<ApiClient, 'request'>
  readonly owner: string
  /** The namespaces that may have policies of an earlier process. */
  readonly namespaces: readonly string[]
  readonly pods: { all(): readonly Pod[] }
  readonly clock: Clock
  readonly log: Log
}

/** How long a policy stays that no Pod has. The next start with it saves a request. */
const IDLE_MS = 600_000
const SWEEP_MS = 600_000

type Policy = ApiObject & { readonly metadata: { readonly labels?: Readonly<Record<string, string>> } }

/** Begins to delete the policies of this worker that no Pod has any more. */
export function openPolicies({ client, owner, namespaces, pods, clock, log }: PoliciesInput): Policies {
  /** When each policy that the cluster has was needed last, by its label, by namespace. */
  const known = new Map<string, Map<string, number>>(namespaces.map((name) => [name, new Map()]))
  const mutex = makeKeyedMutex()
  const closing = new AbortController()

  const sweepOne = async (namespace: string, seen: Map<string, number>): Promise<void> => {
    const query = new URLSearchParams({ labelSelector: `${LABELS.owner}=${owner}` })
    const path = `${policiesPath(namespace)}?${query.toString()}`
    const { items } = await client.request<{ readonly items: readonly Policy[] }>('GET', path, undefined, closing)
    const listed = new Map(items.map(({ metadata }) => [metadata.labels?.[LABELS.network] ?? '', metadata.name]))
    const nowMs = clock.monotonicMs()
    // What somebody else has deleted is made again by the next start. Until then, its Pods reach nothing.
    for (const label of seen.keys()) if (!listed.has(label)) seen.delete(label)
    const used = new Set(pods.all().map(({ metadata }) => metadata.labels?.[LABELS.network]))
    for (const [label, name] of listed) {
      const neededMs = seen.get(label) ?? -Infinity
      if (used.has(label) || nowMs - neededMs < IDLE_MS) continue
      seen.delete(label) // before the deletion: a start that needs it meanwhile makes it again
      await client.request('DELETE', `${policiesPath(namespace)}/${name}`, {}, closing).catch((error: unknown) => {
        if (!isApiError(error, 404)) throw error
      })
    }
  }
  const sweep = async (): Promise<void> => {
    for (const [namespace, seen] of known)
      await mutex
        .run(namespace, () => sweepOne(namespace, seen))
        .catch((error: unknown) => {
          if (isApiError(error, 404)) known.delete(namespace)
          else if (!closing.signal.aborted)
            log.warn({ error, namespace }, 'unused NetworkPolicies could not be deleted')
        })
  }
  const sweeping = repeat(sweep, { pauseMs: SWEEP_MS, clock, onFailure: () => undefined })

  return {
    async ensure(namespace, { label, object }, signal) {
      const seen = known.get(namespace) ?? new Map<string, number>()
      known.set(namespace, seen)
      const nowMs = clock.monotonicMs()
      if (seen.has(label)) {
        seen.set(label, nowMs)
        return
      }
      await mutex.run(namespace, async () => {
        await createObject({ client, clock, log }, policiesPath(namespace), { object, signal })
        seen.set(label, nowMs)
      })
    },
    forget: (namespace) => void known.delete(namespace),
    async close() {
      closing.abort(new Error('the driver is closed'))
      await sweeping.close()
    },
  }
}
