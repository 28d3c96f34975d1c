/**
 * Stores on disk which slot each run has, for the worker's next process. A record is valid only while its namespace has
 * the recorded inode. It becomes invalid after a reboot, or when another namespace has taken the name.
 */
import { readdirSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { Type, type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { asId, type RunId } from '../../domain/ids.ts'
import { netnsPath } from './network-names.ts'
import { readFileSyncOrNull } from '../../lib/files.ts'

const EgressNeedsSchema = Type.Object({
  /** The number of rules by name. */
  named: Type.Integer({ minimum: 0 }),
  strict: Type.Boolean(),
  /** The UDP ports that are closed, so that programs use TLS over TCP. */
  closed_udp_ports: Type.Array(Type.Integer()),
  /** Whether nothing may pass until the secrets of the run are given, and the key of its authority. */
  needs_secrets: Type.Boolean(),
  needs_interception: Type.Boolean(),
})
/** What the egress process must do for a run. */
export type EgressNeeds = Readonly<Static<typeof EgressNeedsSchema>>

const PublishedPortSchema = Type.Object({
  host_bind: Type.String(),
  host_port: Type.Integer(),
  guest_port: Type.Integer(),
  protocol: Type.Union([Type.Literal('tcp'), Type.Literal('udp')]),
})

const RunRecordSchema = Type.Object({
  slot: Type.Integer({ minimum: 1 }),
  namespace: Type.String(),
  /** The namespace's inode number, which is unique while the namespace exists. */
  inode: Type.Integer(),
  /**
   * The run's mark and policy. Null when the network is off. `egress` is present if connections go to the egress process.
   */
  network: Type.Union([
    Type.Null(),
    Type.Object({
      mark: Type.Integer({ minimum: 1 }),
      policy: Type.String(),
      egress: Type.Optional(EgressNeedsSchema),
      /** The address that the sandbox shows instead of that of its slot. */
      shown: Type.Optional(Type.String()),
      /** The ports that the machine listens on for the sandbox. */
      published: Type.Optional(Type.Array(PublishedPortSchema)),
    }),
  ]),
})
/**
 * A run's network: its slot, and the mark and policy of its attachment. The policy is stored as text for comparison.
 */
export type RunNetworkRecord = Readonly<Static<typeof RunRecordSchema>>

const RouterRecordSchema = Type.Object({ pool: Type.String() })
/** The record of the router, with its address pool. Written when the router is complete. */
type RouterRecord = Readonly<Static<typeof RouterRecordSchema>>

export type NetworkRecords = {
  readRouter(): RouterRecord | null
  writeRouter(record: RouterRecord): void
  /** Reads the record of a run. Null when the run has none. */
  readRun(run: RunId): RunNetworkRecord | null
  writeRun(run: RunId, record: RunNetworkRecord): void
  removeRun(run: RunId): Promise<void>
  /** Reads all records, including those whose namespace no longer exists. */
  runs(): ReadonlyMap<RunId, RunNetworkRecord>
  /** Deletes all records. */
  clear(): Promise<void>
}

/**
 * Opens the records. They are small files in `dir`, and each write replaces a file atomically. Reads and writes are synchronous: see
 * `writeJsonAtomicallySync`.
 */
export async function openNetworkRecords(dir: string): Promise<NetworkRecords> {
  const runsDir = join(dir, 'runs')
  const known = new Map<RunId, RunNetworkRecord>() // this process is the only writer
  const installationFile = join(dir, 'installation.json')
  await mkdir(runsDir, { recursive: true })
  const records: NetworkRecords = {
    readRouter: () => readRecord(installationFile, RouterRecordSchema),
    writeRouter: (record) => writeRecord(installationFile, record),
    readRun(run) {
      const record = known.get(run) ?? readRecord(join(runsDir, fileName(run)), RunRecordSchema)
      if (record !== null) known.set(run, record)
      return record
    },
    writeRun(run, record) {
      writeRecord(join(runsDir, fileName(run)), record)
      known.set(run, record)
    },
    async removeRun(run) {
      known.delete(run)
      await rm(join(runsDir, fileName(run)), { force: true })
    },
    runs: () => {
      const found = new Map<RunId, RunNetworkRecord>()
      for (const file of readdirSync(runsDir)) {
        if (!file.endsWith('.json')) continue
        const run = asId<RunId>(file.slice(0, -'.json'.length))
        const record = records.readRun(run)
        if (record !== null) found.set(run, record)
      }
      return found
    },
    clear: async () => {
      known.clear()
      await rm(dir, { recursive: true, force: true })
    },
  }
  return records
}

/** Whether the namespace of a record still exists. */
export function isNamespaceAlive(record: RunNetworkRecord): boolean {
  return namespaceInode(record.namespace) === record.inode
}

/** Reads the inode number of a named namespace. Null when there is no such namespace. */
export function namespaceInode(namespace: string): number | null {
  return statSync(netnsPath(namespace), { throwIfNoEntry: false })?.ino ?? null
}

function fileName(run: RunId): string {
  if (!/^[\w-]{1,64}$/.test(run)) throw new Error(`a run's id can't name a file: ${run}`)
  return `${run}.json`
}

function readRecord<Schema extends TSchema>(file: string, schema: Schema): Static<Schema> | null {
  const text = readFileSyncOrNull(file)
  if (text === null) return null
  try {
    const record: unknown = JSON.parse(text)
    return Value.Check(schema, record) ? record : null
  } catch (error) {
    // A power failure can leave an incomplete file, but then the network that the file described no longer exists.
    if (error instanceof SyntaxError) return null
    throw new Error(`reading ${file}`, { cause: error })
  }
}

function writeRecord(file: string, record: object): void {
  writeFileSync(`${file}.new`, JSON.stringify(record))
  renameSync(`${file}.new`, file)
}
