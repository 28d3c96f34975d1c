import { existsSync } from 'node:fs'
import { readdir, rm, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Command } from 'commander'
import { hasErrorCode } from '../../lib/error-code.ts'
import { mountPointsBelow } from '../../worker/mounts.ts'
import { addSettings, runs, UsageError, type Call } from '../command.ts'
import { printStatus } from '../print-status.ts'
import { DATA_FOLDER_ENTRIES, isDataFolder } from '../server/data-folder.ts'
import { takeDown } from './down.ts'

const HELP = `
It does what \`sandyard down\` does, then deletes the data: database, disks, volumes, images, logs and keys. There is no way back.
It keeps the program, the distribution's packages, folders of shared volumes, and a database of DATABASE_URL.`

/** Defines `sandyard uninstall`, which removes an installation and its data from this machine. */
export function defineUninstall(uninstall: Command): void {
  uninstall.addHelpText('after', HELP).option('--yes', 'delete the data; without it, nothing happens')
  runs(addSettings(uninstall, 'dataDir', 'logLevel'), runUninstall)
}

async function runUninstall({ config, switches }: Call): Promise<void> {
  const { dataDir } = config
  if (!isDataFolder(dataDir)) {
    printStatus(`nothing to remove: ${dataDir} is not the data folder of a server or worker`)
    return
  }
  if (!switches.has('yes'))
    throw new UsageError(`this stops all sandboxes and deletes all data in ${dataDir}; to do so, add --yes`)
  using _lock = await takeDown(config)
  const mounted = await mountPointsBelow(dataDir)
  if (mounted.length > 0)
    throw new Error(`nothing is deleted, because file systems are mounted at ${mounted.join(', ')}`)
  for (const name of DATA_FOLDER_ENTRIES) await rm(join(dataDir, name), { recursive: true, force: true })
  for (const folder of ['/run/sandyard', dataDir]) await removeIfEmpty(folder)
  const left = existsSync(dataDir) ? await readdir(dataDir) : []
  printStatus(
    left.length === 0 ? `${dataDir} is deleted` : `${dataDir} keeps what is not Sandyard's: ${left.join(', ')}`,
  )
  printStatus('to remove the program as well: npm uninstall -g sandyard, or delete its folder')
  if (config.databaseUrl !== null) printStatus('the database of DATABASE_URL is yours and stays as it is')
}

async function removeIfEmpty(folder: string): Promise<void> {
  try {
    await rmdir(folder)
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT', 'ENOTEMPTY', 'EBUSY')) throw error
  }
}
