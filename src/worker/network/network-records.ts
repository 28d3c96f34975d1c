/**
 * What this installation must remember across restarts: the slot of each run. A record counts only while its namespace
 * still has the recorded inode. After a reboot, or for a namespace of the same name that somebody else made, it
 * doesn't.
 */
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Type, type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { asId, type RunId } from '../../domain/ids.ts'
import { netnsPath } from './network-names.ts'
import { isFileNotFound } from '../../lib/files.ts'

const RunRecordSchema = Type.Object({
  slot: Type.Integer({ minimum: 1 }),
  namespace: Type.String(),
  /** The namespace's inode number, which is unique while the namespace exists. */
  inode: Type.Integer(),
  /** Null when the network is off. */
  network: Type.Union([Type.Null(), Type.Object({ mark: Type.Integer({ minimum: 1 }), policy: Type.String() })]),
})
/** A run's network: its slot, and the mark and policy of its attachment. The policy is text, to compare. */
export type RunNetworkRecord = Readonly<Static<typeof RunRecordSchema>>

const RouterRecordSchema = Type.Object({ pool: Type.String() })
/** Written when the router is complete: its address pool. */
type RouterRecord = Readonly<Static<typeof RouterRecordSchema>>

export type NetworkRecords = {
  readRouter(): Promise<RouterRecord | null>
  writeRouter(record: RouterRecord): Promise<void>
  /** Null when the run has no record. */
  readRun(run: RunId): Promise<RunNetworkRecord | null>
  writeRun(run: RunId, record: RunNetworkRecord): Promise<void>
  removeRun(run: RunId): Promise<void>
  /** All records, including those whose namespace is gone. */
  runs(): Promise<ReadonlyMap<RunId, RunNetworkRecord>>
  /** Deletes all records. */
  clear(): Promise<void>
}

/** Opens the records: small files beneath `dir`, each replaced as a whole. */
export async function openNetworkRecords(dir: string): Promise<NetworkRecords> {
  const runsDir = join(dir, 'runs')
  const installationFile = join(dir, 'installation.json')
  await mkdir(runsDir, { recursive: true })
  const records: NetworkRecords = {
    readRouter: () => readRecord(installationFile, RouterRecordSchema),
    writeRouter: (record) => writeRecord(installationFile, record),
    readRun: (run) => readRecord(join(runsDir, fileName(run)), RunRecordSchema),
    writeRun: (run, record) => writeRecord(join(runsDir, fileName(run)), record),
    removeRun: (run) => rm(join(runsDir, fileName(run)), { force: true }),
    runs: async () => {
      const found = new Map<RunId, RunNetworkRecord>()
      for (const file of await readdir(runsDir)) {
        if (!file.endsWith('.json')) continue
        const run = asId<RunId>(file.slice(0, -'.json'.length))
        const record = await records.readRun(run)
        if (record !== null) found.set(run, record)
      }
      return found
    },
    clear: async () => {
      await rm(dir, { recursive: true, force: true })
    },
  }
  return records
}

/** Whether a record's namespace is still the one that it was written for. */
export async function isNamespaceAlive(record: RunNetworkRecord): Promise<boolean> {
  return (await namespaceInode(record.namespace)) === record.inode
}

/** The inode number of a named namespace. Null when there is none. */
export async function namespaceInode(namespace: string): Promise<number | null> {
  try {
    return (await stat(netnsPath(namespace))).ino
  } catch (error) {
    if (isFileNotFound(error)) return null
    throw error
  }
}

function fileName(run: RunId): string {
  if (!/^[\w-]{1,64}$/.test(run)) throw new Error(`a run's id can't name a file: ${run}`)
  return `${run}.json`
}

async function readRecord<Schema extends TSchema>(file: string, schema: Schema): Promise<Static<Schema> | null> {
  try {
    const record: unknown = JSON.parse(await readFile(file, 'utf8'))
    return Value.Check(schema, record) ? record : null
  } catch (error) {
    // a file that a power failure cut short; the network that it described is gone too
    if (isFileNotFound(error) || error instanceof SyntaxError) return null
    throw new Error(`reading ${file}`, { cause: error })
  }
}

async function writeRecord(file: string, record: object): Promise<void> {
  await writeFile(`${file}.new`, JSON.stringify(record))
  await rename(`${file}.new`, file)
}
