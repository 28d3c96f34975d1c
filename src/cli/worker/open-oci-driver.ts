import { join } from 'node:path'
import { duplexPair } from 'node:stream'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { DEFAULT_CHANNEL_LIMITS } from '../../worker/channel/channel.ts'
import { serveChannel } from '../../worker/channel/serve-channel.ts'
import { makeCommandHelper } from '../../worker/processes/command-helper.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { makeOciDriver } from '../../worker/drivers/oci/driver.ts'
import { cgroupFolderOf, cgroupParentOf } from '../../worker/drivers/oci/run/cgroup.ts'
import { startWatchdog } from '../../worker/drivers/shared/watchdog.ts'
import { makeContainerGuests } from '../../worker/drivers/oci/exec/container-guest.ts'
import { findRuntime, type FoundRuntime } from '../../worker/drivers/oci/run/runtime.ts'
import { makeLauncher } from '../../worker/drivers/oci/run/launcher.ts'
import { loadPtyBinding } from '../../worker/drivers/oci/exec/pty-binding.ts'
import { openSandboxNetworks } from '../../worker/network/open-sandbox-networks.ts'
import { readHostResolvers } from '../../worker/network/dns-upstream.ts'
import { openImages, ociFolder, UID_SHIFT, type DriverDeps } from './worker-storage.ts'
import { VERSION } from '../version.ts'

/** Finds the OCI runtime that the settings choose. Rejects when no such runtime works. */
export function chooseRuntime(config: Config): Promise<FoundRuntime> {
  return findRuntime({
    name: config.runtime === 'auto' ? null : config.runtime,
    searchPath: process.env['PATH'] ?? '',
    stateDir: join(config.dataDir, 'runtime'),
    initBinary: DEFAULT_OCI_SETTINGS.initBinary,
  })
}

/** Opens the driver for OCI runtimes. Rejects with the list of what the machine lacks for this driver. */
export async function openOciDriver(
  config: Config,
  {
    folder,
    storage,
    logs,
    log,
    deadlineFile,
    getRuntime,
  }: DriverDeps & { readonly getRuntime: () => Promise<FoundRuntime> },
): Promise<Driver> {
  const runtime = await getRuntime()
  for (const flaw of runtime.unusable) log.warn({ flaw }, 'a stronger OCI runtime is installed but unusable')
  const helper = makeCommandHelper(log)
  const networks = await openSandboxNetworks({
    dir: join(config.dataDir, 'network'),
    addressPool: config.networkPool,
    namePrefix: folder.namePrefix,
    hostResolvers: await readHostResolvers(),
    hardDeny: [],
    hasRebindProtection: true,
    prewarmCount: config.readyAhead,
    commands: helper.commands,
    clock: systemClock,
    random: systemRandom,
    log,
  })
  const images = await openImages(config, log)
  const launcher = makeLauncher(log, deadlineFile)
  const runs = `cgroups:${cgroupFolderOf(cgroupParentOf(ociFolder(config)))}` as const
  const watchdog = deadlineFile === null ? null : startWatchdog({ deadlineFile, runs, clock: systemClock, log })
  const guests = makeContainerGuests({ log, launcher, pty: loadPtyBinding() })
  const driver = await makeOciDriver({
    dir: ociFolder(config),
    runtime,
    launcher,
    commands: helper.commands,
    images,
    networks,
    clock: systemClock,
    log,
    random: systemRandom,
    volumes: storage,
    logs,
    openGuestChannel: (container, use, capture) => {
      const [client, agent] = duplexPair()
      serveChannel(agent, guests.of(container), {
        clock: systemClock,
        log,
        limits: DEFAULT_CHANNEL_LIMITS,
        agentVersion: `sandyard ${VERSION}`,
        onActivity: use.touch,
        onProcess: use.hold,
        capture,
      }).catch((error: unknown) => {
        log.error({ error }, 'a command channel ended with an unexpected error')
      })
      return client
    },
    settings: {
      ...DEFAULT_OCI_SETTINGS,
      defaultDiskMib: config.diskMib,
      diskPool: config.readyAhead,
      cpuOvercommit: config.vcpuOvercommit,
      uidShift: UID_SHIFT,
    },
  })
  return {
    ...driver,
    async close() {
      await driver.close()
      await networks.close()
      launcher.close()
      helper.close()
      await watchdog?.close()
    },
  }
}
