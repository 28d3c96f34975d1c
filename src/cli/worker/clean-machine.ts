import { existsSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { removeInstallationNetworks } from '../../worker/network/open-router.ts'
import { makeNoMetrics } from '../../worker/metrics/sandbox-metrics.ts'
import { openDriver, REAL_DRIVERS, type RealDriver } from './choose-driver.ts'
import { openOwnRanges } from './open-own-ranges.ts'
import type { WorkerHostDeps } from './worker-host.ts'
import { deadlineFilePath, microVmFolder, ociFolder, openLogs, openVolumes } from './worker-storage.ts'

const FOLDERS: Readonly<Record<RealDriver, (config: Config) => string>> = {
  microsandbox: microVmFolder,
  oci: ociFolder,
}

/**
 * Stops all sandboxes of a data folder, and removes everything that belongs to them from the machine: processes, mounts, networks,
 * packet filters, cgroups and loop devices. Keeps the files. Resolves with the number of sandboxes that ran. Call it only while
 * no server or worker uses the folder. The next server reads from the files how the runs ended.
 */
export async function cleanMachine({ config, folder, log }: WorkerHostDeps): Promise<number> {
  await rm(deadlineFilePath(config), { force: true }) // a watchdog that still runs must not read an old deadline
  let stopped = 0
  for (const name of REAL_DRIVERS)
    if (existsSync(FOLDERS[name](config))) stopped += await stopSandboxesOf(name, { config, folder, log })
  await removeInstallationNetworks({ dir: join(config.dataDir, 'network'), namePrefix: folder.namePrefix })
  return stopped
}

async function stopSandboxesOf(name: RealDriver, { config, folder, log }: WorkerHostDeps): Promise<number> {
  await using opened = new AsyncDisposableStack()
  const storage = opened.adopt(await openVolumes(config, folder, log), (one) => one.close())
  const logs = opened.adopt(await openLogs(config, log), (one) => one.close())
  const { driver } = await openDriver(
    { ...config, driver: name, readyAhead: 0, warm: 0 },
    {
      folder,
      storage,
      logs,
      metrics: makeNoMetrics(),
      log,
      ownRanges: await openOwnRanges(config, log),
      openSnapshotFiles: () => null,
      deadlineFile: null,
    },
  )
  opened.defer(() => driver.close())
  const live = (await driver.list()).filter(({ phase }) => phase !== 'ended')
  await Promise.all(live.map(({ run_id }) => driver.stop(run_id, config.stopGraceMs)))
  return live.length
}
