import type { RunId } from '../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../../images/image.ts'
import { type RunRecord, openRunRecords, type RunRecords } from '../../shared/run-records.ts'
import type { ProcessIdentity } from '../../../processes/process-identity.ts'
import { readFileSyncOrNull } from '../../../../lib/files.ts'
import type { RunIds } from '../users/sandbox-users.ts'
import type { Runtime } from './runtime/runtime.ts'

/** The record of a run of this driver. */
export type OciRunRecord = RunRecord<StartedContainer> & {
  readonly spec: SandboxSpec
  readonly image: ImageConfig | null
  /** The run's ids on the host. Absent in records of an earlier version, whose runs all shared one range. */
  readonly ids?: RunIds
  /**
   * The id of the warm sandbox that the run took. The container keeps this id: the names of its cgroups, mounts, network and
   * files have it. Absent: the container has the run's own id.
   */
  readonly container_id?: RunId
}

/** Returns the id of a run's container. */
export function containerIdOf({ run_id, container_id }: Pick<OciRunRecord, 'run_id' | 'container_id'>): RunId {
  return container_id ?? run_id
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
  /** The id of a run's container: the run's own id if the run is not recorded. */
  containerIdOf(run: RunId): RunId
  /** The path of the folder of a run's container, with the files of its start. Only root may enter it. */
  containerFolderOf(run: RunId): string
}

/** Opens the records beneath `dir`. Creates missing folders. */
export async function openOciRunRecords(dir: string): Promise<OciRunRecords> {
  const files = await openRunRecords<OciRunRecord>(dir, 'exits')
  const containerId = (run: RunId): RunId => {
    const record = files.read(run)
    return record === null ? run : containerIdOf(record)
  }
  const endFileOf = (run: RunId): string => files.endFileOf(containerId(run))
  return {
    ...files,
    endFileOf,
    containerIdOf: containerId,
    containerFolderOf: (run) => files.folderOf(containerId(run)),
    readExit(run) {
      const text = readFileSyncOrNull(endFileOf(run))
      return text === null || !/^\d+\s*$/.test(text) ? null : { code: Number(text) }
    },
    async delete(run) {
      const container = containerId(run)
      if (container !== run) await files.delete(container) // first, because the run's record has the container's id
      await files.delete(run)
    },
  }
}
