/**
 * What this installation must remember beyond its process: which slot a run has. A record counts only while the
 * namespace that it names is the very one that was there when it was written, so that a reboot or a stranger's
 * namespace of the same name is never taken for a run's network.
 */
import { mkdir, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Type, type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { asId, type RunId } from '../../domain/ids.ts'
import { netnsPath } from './network-names.ts'
import { isFileNotFound } from '../../lib/is-missing.ts'

const RunRecordSchema = Type.Object({
  slot: Type.Integer({ minimum: 1 }),
  namespace: Type.String(),
  /** The namespace's inode number: unique while it lives. */
  inode: Type.Integer(),
  /** Null when the network is off. */
  network: Type.Union([Type.Null(), Type.Object({ mark: Type.Integer({ minimum: 1 }), policy: Type.String() })]),
})
/** A run's network: its slot, and the mark and policy (as text, to compare) of its attachment. */
export type RunNetworkRecord = Readonly<Static<typeof RunRecordSchema>>

const RouterRecordSchema = Type.Object({ pool: Type.String() })
/** Written when the router is whole: the pool in use. */
type RouterRecord = Readonly<Static<typeof RouterRecordSchema>>

export type NetworkRecords = {
  readRouter(): Promise<RouterRecord | null>
  writeRouter(record: RouterRecord): Promise<void>
  /** Null when the run has none. */
  readRun(run: RunId): Promise<RunNetworkRecord | null>
  writeRun(run: RunId, record: RunNetworkRecord): Promise<void>
  removeRun(run: RunId): Promise<void>
  /** All of them, also of runs whose namespace is gone. */
  runs(): Promise<ReadonlyMap<RunId, RunNetworkRecord>>
  /** Removes everything. */
  clear(): Promise<void>
}

/** Records as small files beneath `dir`, each replaced as a whole. */
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

/** The inode number of a named namespace, or null when there is none. */
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
    // a file that a power failure cut short: what it spoke of went with the power
    if (isFileNotFound(error) || error instanceof SyntaxError) return null
    throw new Error(`reading ${file}`, { cause: error })
  }
}

async function writeRecord(file: string, record: object): Promise<void> {
  await writeFile(`${file}.new`, JSON.stringify(record))
  await rename(`${file}.new`, file)
}
