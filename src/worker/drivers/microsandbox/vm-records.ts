import type { RunId } from '../../../domain/ids.ts'
import { readJson } from '../../../lib/files.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../shared/run-records.ts'
import type { ProcessIdentity } from '../../processes/process-identity.ts'

/** The record of a run of this driver. */
export type VmRunRecord = RunRecord<StartedVm> & { readonly idle_timeout_secs: number | null }

/** The part of a record that is set once the microVM accepted commands. */
export type StartedVm = {
  readonly vm: ProcessIdentity
  /**
   * The process that waits for the workload. Null if there is no workload, or if the process ended before it could be
   * identified.
   */
  readonly watcher: ProcessIdentity | null
  readonly has_workload: boolean
}

/**
 * The end of a workload: an exit code, a signal (the agent does not report which one), or the reason why the workload never
 * started. `lost` means that the agent was gone before it reported the end.
 */
export type WorkloadEnd =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signalled' }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'lost' }

/** The records of this driver's runs. */
export type VmRunRecords = RunRecords<VmRunRecord> & {
  readEnd(run: RunId): Promise<WorkloadEnd | null>
}

/** Opens the records beneath `dir`. Creates missing folders. */
export async function openVmRunRecords(dir: string): Promise<VmRunRecords> {
  const files = await openRunRecords<VmRunRecord>(dir, 'ends')
  return { ...files, readEnd: (run) => readJson<WorkloadEnd>(files.endFileOf(run)) }
}
