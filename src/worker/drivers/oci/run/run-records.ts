import type { RunId } from '../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../../images/image.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../../shared/run-records.ts'
import type { ProcessIdentity } from '../../../processes/process-identity.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import type { RunIds } from '../users/sandbox-users.ts'
import type { Runtime } from './runtime.ts'

/** The record of a run of this driver. */
export type OciRunRecord = RunRecord<StartedContainer> & {
  readonly spec: SandboxSpec
  readonly image: ImageConfig | null
  /** The run's ids on the host. Absent in records of an earlier version, whose runs all shared one range. */
  readonly ids?: RunIds
}

/** The part of a record that is set once the container accepted commands. */
export type StartedContainer = {
  readonly uid_shift: number
  /** The runtime that started the run. A later worker process may choose another runtime for new runs. */
  readonly runtime: Runtime
  /** The shim, a shell that waits for the runtime. Null if the run ended before the shim could be identified. */
  readonly shim: ProcessIdentity | null
  /** The container's first process. */
  readonly init: ProcessIdentity | null
}

/** The runtime's exit code, which the shim wrote to a file. */
export type ExitFile = { readonly code: number }

/** The records of this driver's runs. */
export type OciRunRecords = RunRecords<OciRunRecord> & {
  readExit(run: RunId): ExitFile | null
}

/** Opens the records beneath `dir`. Creates missing folders. */
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
