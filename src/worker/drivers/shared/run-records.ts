import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type OrgId, type SandboxId } from '../../../domain/ids.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'
import type { RunOutcome, DesiredRun } from '../../../contract/workers/worker-protocol.ts'

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
export function newRunRecord(desired: DesiredRun, bootId: string): RunRecord<never> {
  const { run_id, sandbox_id, org_id } = desired
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

/** What a driver keeps of its runs on disk: for each a folder with a record in it, and a file that tells how it ended. */
export type RunRecords<R> = {
  /** A run's own folder, for root alone. */
  folderOf(run: RunId): string
  endFileOf(run: RunId): string
  /** Changes whenever a run has ended. */
  readonly endsFolder: string
  list(): Promise<readonly R[]>
  /** Everything that has a folder here, a readable record or not. */
  names(): Promise<readonly string[]>
  /** Null for what this version did not write. */
  read(run: RunId): Promise<R | null>
  /** Writes a record whole; a reader sees the one before or this one. */
  write(record: R): Promise<void>
  delete(run: RunId): Promise<void>
}

/**
 * Opens the records beneath `dir`, and its folder `endsName` for ends, making both when missing. Nobody else writes them, so that what
 * was written here is not read again: 40 records took 2.5 ms of processor at each look, and take 0.1 (2026-11).
 */
export async function openRunRecords<R extends { readonly version: 1; readonly run_id: RunId }>(
  dir: string,
  endsName: string,
): Promise<RunRecords<R>> {
  const runs = join(dir, 'runs')
  const endsFolder = join(dir, endsName)
  await Promise.all([runs, endsFolder].map((folder) => mkdir(folder, { recursive: true, mode: 0o700 })))
  const folderOf = (run: RunId): string => join(runs, run)
  const endFileOf = (run: RunId): string => join(endsFolder, run)
  const recordOf = (run: RunId): string => join(folderOf(run), 'state.json')
  const written = new Map<RunId, R>()
  const read = async (run: RunId): Promise<R | null> => {
    const known = written.get(run)
    if (known !== undefined) return known
    const record = await readJson<R>(recordOf(run))
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
    names: () => readdir(runs),
    read,
    async write(record) {
      await mkdir(folderOf(record.run_id), { recursive: true, mode: 0o700 })
      await writeJsonAtomically(recordOf(record.run_id), record)
      written.set(record.run_id, record)
    },
    async delete(run) {
      written.delete(run)
      await rm(endFileOf(run), { force: true })
      await rm(folderOf(run), { recursive: true, force: true })
    },
  }
}
