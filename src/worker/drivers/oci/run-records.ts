import type { Outcome } from '../../../contract/worker-protocol.ts'
import type { OrgId, RunId, SandboxId } from '../../../domain/ids.ts'
import type { SandboxSpec } from '../../../domain/spec.ts'
import type { ImageConfig } from '../../images/image.ts'
import { openRunFiles, type RunFiles } from '../run-files.ts'
import { readNow, type ProcessMark } from './processes.ts'
import type { Runtime } from './runtime.ts'

/**
 * What is kept of a run on disk, so that a worker which was killed finds it again. A record is written before anything
 * of its run exists, and goes only after all of it is gone: whatever is left over has a record that says whose it is.
 */
export type RunRecord = {
  readonly version: 1
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly boot_id: string
  readonly spec: SandboxSpec
  readonly image: ImageConfig | null
  readonly facts: Readonly<Record<string, string>>
  /** Set once the sandbox accepted commands. */
  readonly started: StartedRun | null
  readonly is_stop_requested: boolean
  /** Set once the run has ended and why is known. */
  readonly outcome: Outcome | null
  /** True once mounts, network and cgroup are gone. */
  readonly is_released: boolean
}

export type StartedRun = {
  readonly uid_shift: number
  /** The runtime it was started with, whatever a later worker would choose. */
  readonly runtime: Runtime
  /** The shell that waits for the runtime; null when the run was over before it could be marked. */
  readonly shim: ProcessMark | null
  /** The container's first process. */
  readonly init: ProcessMark | null
}

/** How the shim saw the runtime end. */
export type ExitFile = { readonly code: number }

export type RunRecords = RunFiles<RunRecord> & {
  readExit(run: RunId): ExitFile | null
}

/** Opens the folder of records, making it when missing. */
export async function openRunRecords(dir: string): Promise<RunRecords> {
  const files = await openRunFiles<RunRecord>(dir, 'exits')
  return {
    ...files,
    readExit(run) {
      const text = readNow(files.endFileOf(run))
      return text === null || !/^\d+\s*$/.test(text) ? null : { code: Number(text) }
    },
  }
}
