import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Outcome } from '../../../contract/worker-protocol.ts'
import { asId, type OrgId, type RunId, type SandboxId } from '../../../domain/ids.ts'
import type { SandboxSpec } from '../../../domain/spec.ts'
import type { ImageConfig } from '../../images/image.ts'
import { readOrNull, type ProcessMark } from './processes.ts'
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

export type RunRecords = {
  /** A run's own folder, for root alone. */
  folderOf(run: RunId): string
  exitFileOf(run: RunId): string
  /** Changes whenever a run's shim has ended. */
  readonly exitsFolder: string
  list(): Promise<readonly RunRecord[]>
  /** Everything that has a folder here, a readable record or not. */
  names(): Promise<readonly string[]>
  read(run: RunId): Promise<RunRecord | null>
  readExit(run: RunId): Promise<ExitFile | null>
  /** Writes a record whole; a reader sees the one before or this one. */
  write(record: RunRecord): Promise<void>
  delete(run: RunId): Promise<void>
}

/** Opens the folder of records, making it when missing. */
export async function openRunRecords(dir: string): Promise<RunRecords> {
  const runs = join(dir, 'runs')
  const exitsFolder = join(dir, 'exits')
  await Promise.all([runs, exitsFolder].map((folder) => mkdir(folder, { recursive: true, mode: 0o700 })))
  const folderOf = (run: RunId): string => join(runs, run)
  const exitFileOf = (run: RunId): string => join(exitsFolder, run)
  const read = async (run: RunId): Promise<RunRecord | null> => {
    const text = await readOrNull(join(folderOf(run), 'state.json'))
    return text === null ? null : parseRecord(text)
  }
  return {
    folderOf,
    exitFileOf,
    exitsFolder,
    async list() {
      const records = await Promise.all((await readdir(runs)).map((name) => read(asId<RunId>(name))))
      return records.filter((record) => record !== null)
    },
    names: () => readdir(runs),
    read,
    async readExit(run) {
      const text = await readOrNull(exitFileOf(run))
      return text === null || !/^\d+\s*$/.test(text) ? null : { code: Number(text) }
    },
    async write(record) {
      const folder = folderOf(record.run_id)
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await writeFile(join(folder, 'state.tmp'), JSON.stringify(record), { mode: 0o600 })
      await rename(join(folder, 'state.tmp'), join(folder, 'state.json'))
    },
    async delete(run) {
      await rm(exitFileOf(run), { force: true })
      await rm(folderOf(run), { recursive: true, force: true })
    },
  }
}

/** Null for what this version did not write. */
function parseRecord(text: string): RunRecord | null {
  try {
    const value = JSON.parse(text) as RunRecord // written by `write` above, in a folder for root alone
    return value.version === 1 ? value : null
  } catch (error) {
    if (error instanceof SyntaxError) return null // cut short by a crash of the machine
    throw error
  }
}
