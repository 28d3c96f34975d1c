import type { PodRunRecord } from './context.ts'
import { podNameOf, type OrgPod } from './pod.ts'

/** The Pod of a run: the one that the run took ready, or the one that has its name. */
export function podOf({
  run_id,
  org_id,
  namespace,
  pod_name,
}: Pick<PodRunRecord, 'run_id' | 'org_id' | 'namespace' | 'pod_name'>): OrgPod {
  return { namespace, name: pod_name ?? podNameOf(run_id), org_id }
}
