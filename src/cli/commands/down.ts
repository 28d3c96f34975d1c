import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { openLog } from '../open-log.ts'
import { findDataFolderOwner, holdsDataFolder, lockDataFolder } from '../../store/embedded/data-lock.ts'
import { stopLeftServer } from '../../store/embedded/embedded-server.ts'
import { addSettings, runs, type Call } from '../command.ts'
import { printStatus } from '../print-status.ts'
import { fillDataFolder, isDataFolder, localWorkerFolder } from '../server/data-folder.ts'
import { mountDataFolder } from '../server/data-mount.ts'
import { cleanMachine } from '../worker/clean-machine.ts'

const HELP = `
It ends the server or worker that uses the data folder, stops its sandboxes, and removes their processes, mounts, networks and packet
filters, also after a crash. The data stays: \`sandyard up\` continues with it. \`sandyard uninstall\` deletes it too.`

/** Defines `sandyard down`, which stops everything of an installation on this machine. */
export function defineDown(down: Command): void {
  down.addHelpText('after', HELP)
  runs(addSettings(down, 'dataDir', 'logLevel'), runDown)
}

async function runDown({ config }: Call): Promise<void> {
  if (!isDataFolder(config.dataDir)) {
    printStatus(`nothing to stop: ${config.dataDir} is not the data folder of a server or worker`)
    return
  }
  using _lock = await takeDown(config)
  printStatus(`nothing of ${config.dataDir} runs on this machine any more; its data is kept`)
}

/**
 * Ends the process that uses the data folder, and everything of the installation on this machine. Resolves with the lock of the
 * folder, which keeps the next server from starting until it is disposed.
 */
export async function takeDown(config: Config): Promise<Disposable> {
  const log = openLog(config)
  const database = join(config.dataDir, 'database')
  for (const folder of [config.dataDir, database, localWorkerFolder(config.dataDir)]) await endOwner(folder)
  const lock = lockDataFolder(config.dataDir)
  try {
    const folder = await fillDataFolder(config.dataDir, systemRandom, config.secretKey) // a restore may be incomplete
    await using mounted = await mountDataFolder(folder)
    const stopped = await cleanMachine({ config: { ...config, dataDir: mounted.path }, folder, log })
    if (stopped > 0) printStatus(`stopped ${String(stopped)} sandboxes`)
    if (existsSync(database)) await stopLeftServer({ dataDir: database, clock: systemClock, log })
    return lock
  } catch (error) {
    lock[Symbol.dispose]()
    throw error
  }
}

/** How long a process may take to end after each signal. Its clean shutdown ends within a minute. */
const STEPS = [
  { signal: 'SIGTERM', limitMs: 65_000 },
  { signal: 'SIGKILL', limitMs: 5_000 },
] as const
const POLL_MS = 50

/** Ends the process that has locked a folder. It can't be another program, because only Sandyard locks the folder. */
async function endOwner(folder: string): Promise<void> {
  for (const { signal, limitMs } of STEPS) {
    const pid = findDataFolderOwner(folder)
    if (pid === null) return
    printStatus(`ending the process ${String(pid)} with ${signal}`)
    process.kill(pid, signal)
    const deadlineMs = systemClock.monotonicMs() + limitMs
    while (holdsDataFolder(pid, folder) && systemClock.monotonicMs() < deadlineMs) await systemClock.sleep(POLL_MS)
  }
}
