import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type OrgId, type SandboxId } from '../../../domain/ids.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'
import type { RunOutcome, DesiredRun } from '../../../contract/workers/worker-protocol.ts'

/**
 * What every driver stores about a run on disk, so that a restarted worker finds it again. The record is written before
 * anything else of the run exists, and deleted after everything else is gone. So whatever a crash leaves has a record.
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
  /** True once only the record of the run is left on this machine. */
  readonly is_released: boolean
}

/** The record of a run of which nothing exists yet. */
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

/** A driver's runs on disk: a folder with a record for each, and a file that tells how the run ended. */
export type RunRecords<R> = {
  /** A run's own folder, which only root may enter. */
  folderOf(run: RunId): string
  /** The file that the process that waits for the run writes at its end. */
  endFileOf(run: RunId): string
  /** The folder of all end files. */
  readonly endsFolder: string
  list(): Promise<readonly R[]>
  /** The runs that have a folder here, with or without a readable record. */
  names(): Promise<readonly string[]>
  /** Null for a record that is missing, was cut short, or has another version. */
  read(run: RunId): Promise<R | null>
  /** Replaces a record in one step. */
  write(record: R): Promise<void>
  delete(run: RunId): Promise<void>
}

/**
 * Opens the records beneath `dir`, with end files in its folder `endsName`; creates both folders. This process is the only
 * writer, so records that it wrote are not read again. For 40 records, a look takes 0.1 ms instead of 2.5 (2026-11).
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
