import type { PodRunRecord } from './context.ts'
import { podNameOf, type PodName } from './pod.ts'

/** The Pod of a run: the one that the run took ready, or the one that has its name. */
export function podOf({
  run_id,
  namespace,
  pod_name,
}: Pick<PodRunRecord, 'run_id' | 'namespace' | 'pod_name'>): PodName {
  return { namespace, name: pod_name ?? podNameOf(run_id) }
}
