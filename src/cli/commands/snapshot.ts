import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import type { Command } from 'commander'
import type { Config } from '../../config.ts'
import { getSnapshot, listSnapshots } from '../../control/snapshots/read-snapshots.ts'
import { importSnapshot as addSnapshot } from '../../control/snapshots/import-snapshot.ts'
import { asId, type SnapshotId, type WorkerId } from '../../domain/ids.ts'
import { hashSecret } from '../../domain/orgs/api-key.ts'
import { isSnapshotName, SNAPSHOT_NAME_RULE } from '../../domain/snapshots/snapshot.ts'
import { systemClock } from '../../lib/clock.ts'
import { readFileOrNull } from '../../lib/files.ts'
import * as workers from '../../store/workers/workers.ts'
import {
  DISK_LABEL,
  exportSnapshot,
  importSnapshot,
  SOURCE_LABEL,
} from '../../worker/drivers/oci/disk/transfer-snapshot.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { openLog } from '../open-log.ts'
import { imagesFolder, ociFolder, openImages, UID_SHIFT } from '../worker/worker-storage.ts'
import { formatBytes, formatTime } from './format.ts'
import { orgCommand, withOrg, type OperatorDeps } from './operator.ts'
import { printPages } from './output.ts'

const EXPORT_HELP = `
The OCI image layout has the files of the snapshot and of its image in one layer. Load it with \`sandyard image load\`, or with any tool
for containers. Run this on the machine whose worker has the snapshot.`

/** Defines `sandyard snapshot`, which carries snapshots from one installation to another. */
export function defineSnapshot(snapshot: Command): void {
  runs(orgCommand(snapshot, 'list', 'list the snapshots of an organization'), list)
  runs(
    orgCommand(snapshot, 'export <name> <folder>', 'write a snapshot as an OCI image layout').addHelpText(
      'after',
      EXPORT_HELP,
    ),
    exportOne,
  )
  runs(
    orgCommand(snapshot, 'import <path> <name>', 'make a snapshot of an OCI image layout or an image archive').option(
      '--disk-mib <mib>',
      'the size of the disk; otherwise that of the exported snapshot',
    ),
    importOne,
  )
}

async function list(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['NAME', 'SIZE', 'DISK', 'SANDBOX', 'IMAGE', 'CREATED', 'ID'],
      (input) => listSnapshots(deps, acting, input),
      ({ id, name, size_bytes, disk_bytes, sandbox_name, image, created_at }) => [
        name,
        formatBytes(size_bytes ?? 0),
        formatBytes(disk_bytes ?? 0),
        sandbox_name,
        image,
        formatTime(created_at),
        id,
      ],
    )
  })
}

async function exportOne(call: Call): Promise<void> {
  const [name = '', folder = ''] = call.args
  const target = resolve(folder)
  if (existsSync(target)) throw new UsageError(`${folder} exists: name a folder that doesn't`)
  await withOrg(call, async (deps, acting) => {
    const { id, sandbox_name, worker_id } = await getSnapshot(deps, acting, { name })
    const folders = foldersOf(call.config)
    const input = { ...folders, snapshot: id, target, source: sandbox_name, uidShift: UID_SHIFT }
    if (!(await exportSnapshot({ ...input, clock: systemClock, signal: new AbortController().signal })))
      throw new Error(`the snapshot '${name}' is not on this machine: its worker has the id ${worker_id}`)
    process.stdout.write(`${target}\n`)
  })
}

async function importOne(call: Call): Promise<void> {
  const [path = '', name = ''] = call.args
  if (!isSnapshotName(name)) throw new UsageError(`'${name}' is no name of a snapshot: ${SNAPSHOT_NAME_RULE}`)
  const givenMib = readDiskMib(call.texts['disk-mib'])
  await withOrg(call, async (deps, acting) => {
    const worker_id = await ownWorker(deps, call.config)
    const id = asId<SnapshotId>(deps.uuids.next())
    // Only the snapshot uses the image: a reference that others know would give them the files.
    const reference = `localhost/imported-snapshot:${id}`
    const images = await openImages(call.config, openLog(call.config))
    try {
      const image = await images.load(resolve(path), reference, new AbortController().signal)
      const labels = (await images.inspect(reference))?.labels ?? {}
      const diskMib = givenMib ?? readDiskMib(labels[DISK_LABEL]) ?? call.config.diskMib
      const made = await importSnapshot({ ...foldersOf(call.config), snapshot: id, image, diskMib })
      const sandbox_name = labels[SOURCE_LABEL] ?? 'imported'
      try {
        await addSnapshot(deps, acting, { id, name, sandbox_name, worker_id, ...made })
      } finally {
        await made.discard()
      }
    } finally {
      await images.remove(reference)
    }
    process.stdout.write(`${name} ${id}\n`)
  })
}

function foldersOf(config: Config): { readonly dir: string; readonly imagesDir: string } {
  return { dir: join(ociFolder(config), 'disks', 'snapshots'), imagesDir: imagesFolder(config) }
}

/** The worker of this data folder. */
async function ownWorker({ db }: Pick<OperatorDeps, 'db'>, { dataDir }: Config): Promise<WorkerId> {
  const credential = (await readFileOrNull(join(dataDir, 'worker.credential'))) ?? ''
  const [worker] = await db.asSystem((q) => workers.findByCredentials(q, [hashSecret(credential)]))
  if (worker === undefined || worker === null)
    throw new Error('no worker of this data folder is registered: start the server once')
  return worker.id
}

const DISK_MAX_MIB = 1_048_576

function readDiskMib(text: string | undefined): number | null {
  if (text === undefined) return null
  const mib = Number(text)
  if (!Number.isInteger(mib) || mib < 1 || mib > DISK_MAX_MIB)
    throw new UsageError(`--disk-mib takes a number from 1 to ${String(DISK_MAX_MIB)}`)
  return mib
}
