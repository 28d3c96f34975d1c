import type { RunOutcome, DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { OrgId, RunId, SandboxId } from '../../../domain/ids.ts'

/**
 * What every driver keeps of a run on disk, so that a worker which was killed finds it again. A record is written before
 * anything of its run exists, and goes only after all of it is gone: whatever is left over has a record that says whose it is.
 */
export type RunRecord<Started> = {
  readonly version: 1
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly boot_id: string
  readonly facts: Readonly<Record<string, string>>
  /** Set once the sandbox accepted commands. */
  readonly started: Started | null
  readonly is_stop_requested: boolean
  /** Set once the run has ended and why is known. */
  readonly outcome: RunOutcome | null
  /** True once nothing of the run is left on this machine but its record. */
  readonly is_released: boolean
}

/** A run of which there is nothing yet. */
export function newRunRecord(wanted: DesiredRun, bootId: string): RunRecord<never> {
  const { run_id, sandbox_id, org_id } = wanted
  return {
    version: 1,
    run_id,
    sandbox_id,
    org_id,
    boot_id: bootId,
    facts: {},
    started: null,
    is_stop_requested: false,
    outcome: null,
    is_released: false,
  }
}
