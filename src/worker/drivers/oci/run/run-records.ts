import type { RunId } from '../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../../images/image.ts'
import type { KeptRun } from '../../shared/kept-run.ts'
import { openRunFiles, type RunFiles } from '../../shared/run-files.ts'
import { readNow, type ProcessMark } from '../../shared/processes.ts'
import type { Runtime } from './runtime.ts'

/** What this driver keeps of a run. */
export type RunRecord = KeptRun<StartedRun> & { readonly spec: SandboxSpec; readonly image: ImageConfig | null }

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
