import { join } from 'node:path'
import { systemRandom } from '../../lib/random.ts'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeMicrosandboxDriver } from '../../worker/drivers/microsandbox/driver.ts'
import { findInstallation } from '../../worker/drivers/microsandbox/installation.ts'
import { makeCommandHelper } from '../../worker/processes/command-helper.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { startTrimLoop } from '../../worker/images/trim-loop.ts'
import { startWatchdog } from '../../worker/drivers/shared/watchdog.ts'
import { openNetworks } from './open-networks.ts'
import { microVmFolder, diskReserve, openImages, UID_SHIFT, type DriverDeps } from './worker-storage.ts'

/** Opens the driver for microVMs. Rejects with the list of what the machine lacks for this driver. */
export async function openMicrosandboxDriver(
  config: Config,
  { folder, storage, logs, metrics, log, deadlineFile, ownRanges, countPulls = (images) => images }: DriverDeps,
): Promise<Driver> {
  const installation = findInstallation()
  if (installation === null) throw new Error('the npm package microsandbox is not installed for this machine')
  const images = await openImages(config, log)
  const runs = `vms:${join(microVmFolder(config), 'runs')}` as const
  await using opened = new AsyncDisposableStack() // a failure below closes what is open by then
  const watchdog = deadlineFile === null ? null : startWatchdog({ deadlineFile, runs, clock: systemClock, log })
  opened.defer(() => watchdog?.close())
  const helper = makeCommandHelper(log)
  opened.defer(() => {
    helper.close()
  })
  const networks = await openNetworks(config, { folder, ownRanges, log, commands: helper.commands })
  opened.defer(() => networks.close())
  const driver = await makeMicrosandboxDriver({
    dir: microVmFolder(config),
    installation,
    images: countPulls(images),
    imageDigests: async () => {
      const records = await Promise.all((await images.list()).map((reference) => images.inspect(reference)))
      return records.flatMap((record) => (record === null ? [] : [record.digest]))
    },
    volumes: storage,
    logs,
    metrics,
    networks,
    clock: systemClock,
    random: systemRandom,
    log,
    settings: {
      defaultDiskMib: config.diskMib,
      maxDiskMib: config.diskMaxMib,
      uidShift: UID_SHIFT,
      cpuOvercommit: config.vcpuOvercommit,
      hostReserveMib: config.hostReserveMib,
      diskReserve: diskReserve(config),
      diskOvercommit: config.diskOvercommit,
    },
  })
  opened.defer(() => driver.close())
  const trimLoop = startTrimLoop(images, { clock: systemClock, log })
  opened.defer(() => trimLoop.close())
  const parts = opened.move()
  return { ...driver, close: () => parts.disposeAsync() }
}
