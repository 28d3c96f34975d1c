import type { Outcome } from '../../../contract/worker-protocol.ts'
import type { OrgId, RunId, SandboxId } from '../../../domain/ids.ts'
import { readJson } from '../json-file.ts'
import type { ProcessMark } from '../oci/processes.ts'
import { openRunFiles, type RunFiles } from '../run-files.ts'

/**
 * What is kept of a run on disk, so that a worker which was killed finds it again. A record is written before anything
 * of its run exists, and goes only after all of it is gone.
 */
export type VmRecord = {
  readonly version: 1
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly boot_id: string
  readonly idle_timeout_secs: number | null
  readonly facts: Readonly<Record<string, string>>
  /** Set once the sandbox accepted commands. */
  readonly started: StartedVm | null
  readonly is_stop_requested: boolean
  /** Set once the run has ended and why is known. */
  readonly outcome: Outcome | null
  /** True once the virtual machine, its watchers and its mounts are gone. */
  readonly is_released: boolean
}

export type StartedVm = {
  readonly vm: ProcessMark
  /** The process that waits for the workload; null when there is none, or it was over before it could be marked. */
  readonly watcher: ProcessMark | null
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

export type VmRecords = RunFiles<VmRecord> & {
  readEnd(run: RunId): Promise<WorkloadEnd | null>
}

/** Opens the folder of records, making it when missing. */
export async function openVmRecords(dir: string): Promise<VmRecords> {
  const files = await openRunFiles<VmRecord>(dir, 'ends')
  return { ...files, readEnd: (run) => readJson<WorkloadEnd>(files.endFileOf(run)) }
}
