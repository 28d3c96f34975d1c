import { mkdir, readdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type OrgId, type SandboxId } from '../../../domain/ids.ts'
import { readJson, writeJsonAtomically } from '../../../lib/files.ts'
import type { RunOutcome, DesiredRun } from '../../../contract/workers/worker-protocol.ts'

/**
 * The record of a run, which every driver stores on disk so that a restarted worker finds the run again. It is written before
 * anything else of the run exists, and deleted after everything else is gone. Therefore everything that a crash leaves behind
 * has a record.
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
  /** Set once the run has ended and the outcome is known. */
  readonly outcome: RunOutcome | null
  /** True once nothing of the run except its record is left on this machine. */
  readonly is_released: boolean
}

/** Creates the record of a new run. */
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

/** A driver's runs on disk. Each run has a folder with its record, and an end file that stores how the run ended. */
export type RunRecords<R> = {
  /** The path of a run's folder, which only root may enter. */
  folderOf(run: RunId): string
  /** The path of a run's end file. The process that waits for the run writes it when the run ends. */
  endFileOf(run: RunId): string
  /** The folder of all end files. */
  readonly endsFolder: string
  list(): Promise<readonly R[]>
  /** Lists the runs that have a folder, with or without a readable record. */
  names(): Promise<readonly string[]>
  /** Reads a record. Resolves with null if it is missing, truncated or of another version. */
  read(run: RunId): Promise<R | null>
  /** Replaces a record atomically. */
  write(record: R): Promise<void>
  delete(run: RunId): Promise<void>
}

/**
 * Opens the records beneath `dir`, with the end files in its folder `endsName`. Creates both folders. This process is the only
 * writer, so it caches the records that it wrote. Reading 40 records takes 0.1 ms instead of 2.5 (2026-11).
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
