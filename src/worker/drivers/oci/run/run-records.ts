import type { RunId } from '../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../../images/image.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../../shared/run-records.ts'
import type { ProcessIdentity } from '../../../processes/process-identity.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import type { Runtime } from './runtime.ts'

/** What this driver stores about a run. */
export type OciRunRecord = RunRecord<StartedContainer> & {
  readonly spec: SandboxSpec
  readonly image: ImageConfig | null
}

/** The part of a record that exists once the container accepted commands. */
export type StartedContainer = {
  readonly uid_shift: number
  /** The runtime that started it, whichever a later worker would choose. */
  readonly runtime: Runtime
  /** The shell that waits for the runtime; null when the run ended before the shell could be identified. */
  readonly shim: ProcessIdentity | null
  /** The container's first process. */
  readonly init: ProcessIdentity | null
}

/** The runtime's exit, as the shim wrote it. */
export type ExitFile = { readonly code: number }

/** The records of this driver's runs. */
export type OciRunRecords = RunRecords<OciRunRecord> & {
  readExit(run: RunId): ExitFile | null
}

/** Opens the records beneath `dir`, creating their folders when missing. */
export async function openOciRunRecords(dir: string): Promise<OciRunRecords> {
  const files = await openRunRecords<OciRunRecord>(dir, 'exits')
  return {
    ...files,
    readExit(run) {
      const text = readFileSyncOrNull(files.endFileOf(run))
      return text === null || !/^\d+\s*$/.test(text) ? null : { code: Number(text) }
    },
  }
}
