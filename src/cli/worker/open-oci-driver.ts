import { ociKey } from '../../worker/mounts.ts'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { localCommands } from '../../lib/run-command.ts'
import { makePiecePacer } from '../../lib/turns/piece-pacer.ts'
import { DEFAULT_CHANNEL_LIMITS } from '../../worker/channel/channel.ts'
import { openChannel } from '../../worker/channel/open-channel.ts'
import { makeCommandHelper } from '../../worker/processes/command-helper.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { DEFAULT_OCI_SETTINGS, type OciSettings } from '../../worker/drivers/oci/context.ts'
import { makeOciDriver } from '../../worker/drivers/oci/driver.ts'
import { defaultWarmLimit } from '../../worker/drivers/oci/warm-limit.ts'
import { findEarlierKey } from '../../worker/drivers/oci/run/earlier-key.ts'
import { cgroupFolderOf, cgroupParentOf } from '../../worker/drivers/oci/cgroups/open-cgroups.ts'
import { makeSnapshotFetcher } from '../../worker/images/fetch-snapshot.ts'
import { startTrimLoop } from '../../worker/images/trim-loop.ts'
import { startWatchdog } from '../../worker/drivers/shared/watchdog.ts'
import { makeContainerGuests } from '../../worker/drivers/oci/exec/container-guests.ts'
import { makeForkServers } from '../../worker/drivers/oci/exec/fork-servers.ts'
import { findRuntime, type FoundRuntime } from '../../worker/drivers/oci/run/runtime/runtime.ts'
import { makeLoopbackConnections } from '../../worker/network/loopback-connections.ts'
import { makeLauncher } from '../../worker/drivers/oci/run/runtime/launcher.ts'
import { loadPtyBinding } from '../../worker/drivers/oci/exec/pty-binding.ts'
import { openNetworks } from './open-networks.ts'
import { openSessionPermits } from './open-session-permits.ts'
import { diskReserve, imagesFolder, openImages, ociFolder, UID_SHIFT, type DriverDeps } from './worker-storage.ts'
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

/** The settings that limit sandboxes, as the driver for OCI runtimes expects them. */
export function limitSettings(
  config: Config,
): Pick<OciSettings, 'cpuOvercommit' | 'hostReserveMib' | 'pidsPerGib' | 'sessionsPerSandbox' | 'diskThrottle'> {
  return {
    cpuOvercommit: config.vcpuOvercommit,
    hostReserveMib: config.hostReserveMib,
    pidsPerGib: config.pidsPerGib,
    sessionsPerSandbox: config.sessionsPerSandbox,
    diskThrottle: {
      bytesPerSec: config.diskMibPerSec === null ? null : config.diskMibPerSec * 1024 * 1024,
      iops: config.diskIops,
    },
  }
}

/** What a channel buffers in each direction. A piece of 64 KiB fills the default buffer, and so would pause the connection each time. */
const CHANNEL_BUFFER_BYTES = 1024 * 1024

/** Opens the driver for OCI runtimes. Rejects with the list of what the machine lacks for this driver. */
export async function openOciDriver(
  config: Config,
  {
    folder,
    storage,
    logs,
    metrics,
    log,
    deadlineFile,
    ownRanges,
    getRuntime,
    countPulls = (images) => images,
    openSnapshotFiles,
  }: DriverDeps & { readonly getRuntime: () => Promise<FoundRuntime> },
): Promise<Driver> {
  const runtime = await getRuntime()
  for (const flaw of runtime.unusable) log.warn({ flaw }, 'a stronger OCI runtime is installed but unusable')
  await using opened = new AsyncDisposableStack() // a failure below closes what is open by then
  const earlier = { dir: ociFolder(config), earlierDir: ociFolder({ dataDir: folder.path }) }
  const earlierKey = await findEarlierKey({ ...earlier, clock: systemClock, commands: localCommands })
  if (earlierKey !== null)
    log.info(
      { key: earlierKey },
      'sandboxes of an earlier release run on; cgroup and mounts keep their names meanwhile',
    )
  const key = earlierKey ?? ociKey(folder.namePrefix)
  const runs = `cgroups:${cgroupFolderOf(cgroupParentOf(key))}` as const
  const watchdog = deadlineFile === null ? null : startWatchdog({ deadlineFile, runs, clock: systemClock, log })
  opened.defer(() => watchdog?.close())
  const helper = makeCommandHelper(log)
  opened.defer(() => {
    helper.close()
  })
  const networks = await openNetworks(config, { folder, ownRanges, log, commands: helper.commands })
  opened.defer(() => networks.close())
  const images = await openImages(config, log)
  const launcher = makeLauncher(log, deadlineFile)
  opened.defer(() => {
    launcher.close()
  })
  const sessions = openSessionPermits(config, log)
  const pacer = makePiecePacer()
  const incoming = join(config.dataDir, 'images', 'incoming')
  const fetchSnapshot = await makeSnapshotFetcher({ images, dir: incoming, openFiles: openSnapshotFiles, log })
  const loopback = makeLoopbackConnections(log)
  opened.defer(() => {
    loopback.close()
  })
  const forkServers = makeForkServers({ launcher, clock: systemClock, log })
  const guests = makeContainerGuests({
    log,
    launcher,
    forkServers,
    commands: helper.commands,
    sessions,
    loopback,
    pty: loadPtyBinding(),
  })
  const driver = await makeOciDriver({
    dir: ociFolder(config),
    key,
    runtime,
    launcher,
    forkServers,
    commands: helper.commands,
    images: countPulls(images),
    fetchSnapshot,
    networks,
    clock: systemClock,
    log,
    random: systemRandom,
    folders: { images: imagesFolder(config), volumes: storage.root },
    volumes: storage,
    logs,
    metrics,
    connectGuest: (container, target, signal) => guests.of(container).connectSocket(target, signal),
    openGuestChannel: (container, use, capture) => {
      const served = {
        clock: systemClock,
        log,
        limits: DEFAULT_CHANNEL_LIMITS,
        pace: pacer.paceOf(container.orgId),
        agentVersion: `sandyard ${VERSION}`,
        onActivity: use.touch,
        onProcess: use.hold,
        capture,
      }
      return openChannel(guests.of(container), served, { highWaterMark: CHANNEL_BUFFER_BYTES })
    },
    settings: {
      ...DEFAULT_OCI_SETTINGS,
      defaultDiskMib: config.diskMib,
      maxDiskMib: config.diskMaxMib,
      diskOvercommit: config.diskOvercommit,
      readyAhead: config.readyAhead,
      warm: config.warm ?? defaultWarmLimit(),
      ...limitSettings(config),
      uidShift: UID_SHIFT,
      uidRange: config.uidRange,
      diskReserve: diskReserve(config),
    },
  })
  opened.defer(() => driver.close())
  const trimLoop = startTrimLoop(images, { clock: systemClock, log })
  opened.defer(() => trimLoop.close())
  const parts = opened.move()
  return { ...driver, close: () => parts.disposeAsync() }
}
