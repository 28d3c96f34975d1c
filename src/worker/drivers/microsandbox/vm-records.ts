import type { RunId } from '../../../domain/ids.ts'
import { readJson } from '../../../lib/files.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../shared/run-records.ts'
import type { ProcessIdentity } from '../../processes/process-identity.ts'

/** What this driver keeps of a run. */
export type VmRunRecord = RunRecord<StartedVm> & { readonly idle_timeout_secs: number | null }

export type StartedVm = {
  readonly vm: ProcessIdentity
  /** The process that waits for the workload; null when there is none, or it was over before it could be marked. */
  readonly watcher: ProcessIdentity | null
  readonly has_workload: boolean
}

/**
 * How a workload ended: with a code; by a signal, which the agent does not name; or never begun, with the reason. `lost`:
 * the agent went away before it said.
 */
export type WorkloadEnd =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled' }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'lost' }

export type VmRunRecords = RunRecords<VmRunRecord> & {
  readEnd(run: RunId): Promise<WorkloadEnd | null>
}

/** Opens the folder of records, making it when missing. */
export async function openVmRunRecords(dir: string): Promise<VmRunRecords> {
  const files = await openRunRecords<VmRunRecord>(dir, 'ends')
  return { ...files, readEnd: (run) => readJson<WorkloadEnd>(files.endFileOf(run)) }
}
