import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { StartError } from '../../../start-error.ts'
import { isUsable, LABELS, type Pod, type PodName } from '../pod.ts'

type ClaimDeps = {
  readonly client: Pick<ApiClient, 'request'>
  readonly clock: Clock
  readonly log: Log
}
type Claim = {
  readonly target: PodName
  readonly uid: string
  readonly run: Pick<DesiredRun, 'run_id' | 'sandbox_id'>
  readonly signal: AbortSignal
}

/**
 * Gives a warm Pod to a run by a write that succeeds only on the state that was read, so one run at most has it. `claimed` also
 * if an earlier answer was lost. `gone`: the Pod is over, or another run's. `refused`: the worker may not write to Pods. May be repeated.
 */
export async function claimPod(
  deps: ClaimDeps,
  { target, uid, run, signal }: Claim,
): Promise<'claimed' | 'gone' | 'refused'> {
  const path = `/api/v1/namespaces/${target.namespace}/pods/${target.name}`
  const persist = <Answer>(ask: () => Promise<Answer>): Promise<Answer> => persistRequest(ask, { ...deps, signal })
  for (;;) {
    try {
      const pod = await persist(() => deps.client.request<Pod>('GET', path, undefined, { signal }))
      const { labels = {} } = pod.metadata
      if (pod.metadata.uid !== uid || !isUsable(pod)) return 'gone'
      if (labels[LABELS.run] === run.run_id) return 'claimed'
      if (labels[LABELS.run] !== undefined) return 'gone'
      const claimed = { ...labels, [LABELS.run]: run.run_id, [LABELS.sandbox]: run.sandbox_id }
      const next = { ...pod, metadata: { ...pod.metadata, labels: claimed } } // with the version that was read
      await persist(() => deps.client.request('PUT', path, next, { signal }))
      return 'claimed'
    } catch (error) {
      if (isApiError(error, 404)) return 'gone'
      if (isApiError(error, 403)) return 'refused'
      if (!isApiError(error, 409)) throw error // 409: it has changed, perhaps by its kubelet
    }
  }
}

/**
 * Throws `StartError` if a run has another Pod than this one. A claimed Pod has not the run's name, so a name alone doesn't prevent a
 * second one. Every start looks here after its write and before its sandbox is used. Of two writers, the later one sees both.
 */
export async function assertOnlyPod(deps: ClaimDeps, { target, uid, run, signal }: Claim): Promise<void> {
  const query = new URLSearchParams({ labelSelector: `${LABELS.run}=${run.run_id}` })
  const path = `/api/v1/namespaces/${target.namespace}/pods?${query.toString()}`
  const { items } = await persistRequest(
    () => deps.client.request<{ readonly items: readonly Pod[] }>('GET', path, undefined, { signal }),
    { ...deps, signal },
  )
  const other = items.find(({ metadata }) => metadata.uid !== uid)
  if (other !== undefined) throw new StartError('host', `the run has another Pod, ${other.metadata.name}`)
}
