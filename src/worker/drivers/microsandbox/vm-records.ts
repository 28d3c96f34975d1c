import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Outcome } from '../../../contract/worker-protocol.ts'
import { asId, type OrgId, type RunId, type SandboxId } from '../../../domain/ids.ts'
import { readOrNull, type ProcessMark } from '../oci/processes.ts'

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

export type VmRecords = {
  /** A run's own folder, for root alone. */
  folderOf(run: RunId): string
  endFileOf(run: RunId): string
  /** Changes whenever a workload has ended. */
  readonly endsFolder: string
  list(): Promise<readonly VmRecord[]>
  read(run: RunId): Promise<VmRecord | null>
  readEnd(run: RunId): Promise<WorkloadEnd | null>
  /** Writes a record whole; a reader sees the one before or this one. */
  write(record: VmRecord): Promise<void>
  delete(run: RunId): Promise<void>
}

/** Opens the folder of records, making it when missing. */
export async function openVmRecords(dir: string): Promise<VmRecords> {
  const runs = join(dir, 'runs')
  const endsFolder = join(dir, 'ends')
  for (const folder of [runs, endsFolder]) await mkdir(folder, { recursive: true, mode: 0o700 })
  const folderOf = (run: RunId): string => join(runs, run)
  const endFileOf = (run: RunId): string => join(endsFolder, run)
  const read = async (run: RunId): Promise<VmRecord | null> => {
    const record = await readJson<VmRecord>(join(folderOf(run), 'state.json'))
    return record?.version === 1 ? record : null
  }
  return {
    folderOf,
    endFileOf,
    endsFolder,
    async list() {
      const records = await Promise.all((await readdir(runs)).map((name) => read(asId<RunId>(name))))
      return records.filter((record) => record !== null)
    },
    read,
    readEnd: (run) => readJson<WorkloadEnd>(endFileOf(run)),
    async write(record) {
      const folder = folderOf(record.run_id)
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await writeWhole(join(folder, 'state.json'), record)
    },
    async delete(run) {
      await rm(endFileOf(run), { force: true })
      await rm(folderOf(run), { recursive: true, force: true })
    },
  }
}

/** Writes a file whole: a reader sees the one before or this one. */
export async function writeWhole(path: string, value: object): Promise<void> {
  await writeFile(`${path}.tmp`, JSON.stringify(value), { mode: 0o600 })
  await rename(`${path}.tmp`, path)
}

/** Null for a file that is not there or was cut short by a crash of the machine. */
export async function readJson<T>(path: string): Promise<T | null> {
  const text = await readOrNull(path)
  if (text === null) return null
  try {
    return JSON.parse(text) as T // written by `writeWhole` in a folder for root alone
  } catch (error) {
    if (error instanceof SyntaxError) return null
    throw error
  }
}
