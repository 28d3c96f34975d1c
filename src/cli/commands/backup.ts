import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { makeLog } from '../../lib/log.ts'
import { makeBackup, type MadeBackup } from '../backup/make-backup.ts'
import { parseManifest, streamsOf } from '../backup/manifest.ts'
import { openRepository } from '../backup/open-repository.ts'
import { showProgress } from '../backup/progress.ts'
import { verifyRepository } from '../backup/verify-backup.ts'
import { addSettings, runs, UsageError, type Call } from '../command.ts'
import { printStatus } from '../print-status.ts'
import { listenForStopSignals } from '../stop-signals.ts'
import { isDataFolder } from '../server/data-folder.ts'
import { formatBytes } from './format.ts'
import { printJson, printTable } from './output.ts'

const HELP = `
The target is a folder, which may hold many backups, or a new file whose name ends with .tar. Each backup in a folder is complete, and
what two backups have in common is stored once. The server may run meanwhile. A backup has the installation's keys: keep it secret.
Exit code 1: there is no backup, or something could not be taken; it is listed.`

/** Defines `sandyard backup`, with which backups are made, listed and verified. */
export function defineBackup(backup: Command): void {
  backup
    .addHelpText('after', HELP)
    .argument('<target>', 'the folder or .tar file')
    .option('--without-images', 'leave out the images, which registries still have')
    .option('--json', 'print the result as JSON')
  runs(addSettings(backup, 'dataDir', 'logLevel'), runBackup)
  const list = backup.command('list').description('list the backups in a folder or file')
  runs(list.argument('<target>', 'the folder or .tar file'), listBackups)
  const verify = backup.command('verify').description('read all backups in a folder or file, and name what is damaged')
  runs(verify.argument('<target>', 'the folder or .tar file'), verifyBackups)
}

async function runBackup({ config, args, switches }: Call): Promise<number> {
  const [target = ''] = args
  if (!isDataFolder(config.dataDir) && !existsSync(resolve(config.dataDir, 'worker.json')))
    throw new UsageError(`${config.dataDir} is not the data folder of a server or worker; name it by --data-dir`)
  const progress = showProgress()
  const made = await makeBackup({
    config,
    target: resolve(target),
    withImages: !switches.has('without-images'),
    log: makeLog(config.logLevel),
    onProgress: progress.show,
    signal: listenForStopSignals(config),
  }).finally(progress.end)
  const { name, manifest, tally, failures } = made
  if (switches.has('json')) {
    const { taken_at, left_out } = manifest
    printJson({ name, taken_at, read_bytes: tally.readBytes, written_bytes: tally.writtenBytes, left_out })
  } else {
    printSummary(made)
  }
  return failures.length > 0 ? 1 : 0
}

function printSummary({ name, manifest, tally }: MadeBackup): void {
  const count = (kind: string): string => String(manifest.archives.filter((archive) => archive.kind === kind).length)
  const { database } = manifest
  const rows = database === null ? '' : `${String(database.tables.reduce((sum, table) => sum + table.rows, 0))} rows, `
  printStatus(`backed up ${rows}${count('volume')} volumes and ${count('disk')} disks as ${name}`)
  printStatus(`read ${formatBytes(tally.readBytes)}, wrote ${formatBytes(tally.writtenBytes)}`)
  for (const text of manifest.left_out) printStatus(`left out: ${text}`)
}

async function listBackups({ args: [target = ''] }: Call): Promise<number> {
  await using repository = toDisposable(await openRepository(resolve(target)))
  const rows = []
  let flaws = 0
  for (const name of await repository.list()) {
    let manifest
    try {
      manifest = parseManifest(name, await repository.readManifest(name))
    } catch (error) {
      printStatus(error instanceof Error ? error.message : String(error))
      flaws += 1
      continue
    }
    const bytes = streamsOf(manifest).reduce((sum, stream) => sum + stream.bytes, 0)
    rows.push([manifest.taken_at, manifest.release, formatBytes(bytes), String(manifest.left_out.length)])
  }
  printTable(['TIME', 'RELEASE', 'SIZE', 'LEFT OUT'], rows)
  return flaws > 0 ? 1 : 0
}

async function verifyBackups({ args: [target = ''] }: Call): Promise<number> {
  await using repository = toDisposable(await openRepository(resolve(target)))
  const progress = showProgress()
  const { backups, chunks, flaws } = await verifyRepository(repository, progress.show).finally(progress.end)
  for (const flaw of flaws) printStatus(flaw)
  if (flaws.length > 0) return 1
  printStatus(`${String(backups)} backups with ${String(chunks)} chunks are complete`)
  return 0
}

/** Gives a repository without open files a dispose function. */
function toDisposable<T extends Partial<AsyncDisposable>>(repository: T): T & AsyncDisposable {
  return { ...repository, [Symbol.asyncDispose]: async () => repository[Symbol.asyncDispose]?.() }
}
