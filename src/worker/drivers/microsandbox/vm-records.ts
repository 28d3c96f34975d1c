import type { RunId } from '../../../domain/ids.ts'
import { readJson } from '../../../lib/files.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../shared/run-records.ts'
import type { ProcessIdentity } from '../../processes/process-identity.ts'

/** What this driver stores about a run. */
export type VmRunRecord = RunRecord<StartedVm> & { readonly idle_timeout_secs: number | null }

/** The part of a record that exists once the microVM accepted commands. */
export type StartedVm = {
  readonly vm: ProcessIdentity
  /** The process that waits for the workload; null without a workload, or if it ended before it could be identified. */
  readonly watcher: ProcessIdentity | null
  readonly has_workload: boolean
}

/**
 * How a workload ended: with a code, by a signal, which the agent does not name, or with a reason why it never started.
 * `lost`: the agent was gone before it reported the end.
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

/** Opens the records beneath `dir`, creating their folders when missing. */
export async function openVmRunRecords(dir: string): Promise<VmRunRecords> {
  const files = await openRunRecords<VmRunRecord>(dir, 'ends')
  return { ...files, readEnd: (run) => readJson<WorkloadEnd>(files.endFileOf(run)) }
}
