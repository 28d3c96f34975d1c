import { join } from 'node:path'
import { duplexPair } from 'node:stream'
import type { Config } from '../config.ts'
import { systemClock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import { systemRandom } from '../lib/random.ts'
import { DEFAULT_CHANNEL_LIMITS } from '../worker/channel/channel.ts'
import { serveChannel } from '../worker/channel/serve-channel.ts'
import type { Driver } from '../worker/drivers/driver.ts'
import { DEFAULT_OCI_SETTINGS } from '../worker/drivers/oci/context.ts'
import { readLayersInUse } from '../worker/drivers/oci/layers-in-use.ts'
import { makeOciDriver } from '../worker/drivers/oci/driver.ts'
import { makeContainerGuests } from '../worker/drivers/oci/guests.ts'
import { findRuntime, type FoundRuntime } from '../worker/drivers/oci/runtime.ts'
import { loadPtyBinding } from '../worker/drivers/oci/pty-binding.ts'
import { makeSimulatedDriver } from '../worker/drivers/simulated.ts'
import { openImageStore, type ImageStore } from '../worker/images/store.ts'
import { openSandboxLogs } from '../worker/logs/log-store.ts'
import type { SandboxLogs } from '../worker/logs/logs.ts'
import { makeNetworks } from '../worker/network/make-networks.ts'
import { readHostResolvers } from '../worker/network/resolv-conf.ts'
import { openVolumeStorage, type StoragePlan } from '../worker/volumes/open-storage.ts'
import type { VolumeStorage } from '../worker/volumes/storage.ts'
import type { DataFolder } from './data-folder.ts'
import { VERSION } from './version.ts'

/** The host user that is user 0 of every sandbox. */
export const UID_SHIFT = 100_000

/** The image store of an installation; the server and `sandyard image` may have it open at once. */
export function openImages(config: Config, log: Log): Promise<ImageStore> {
  return openImageStore({
    dir: join(config.dataDir, 'images'),
    uidShift: UID_SHIFT,
    clock: systemClock,
    log,
    defaultRegistry: config.defaultRegistry,
  })
}

/** Deletes layers that no reference and no sandbox needs any more; answers how many. */
export async function collectLayers(config: Config, images: ImageStore): Promise<number> {
  return images.collectGarbage(await readLayersInUse(sandboxFolder(config)))
}

function sandboxFolder(config: Config): string {
  return join(config.dataDir, 'sandboxes')
}

/** The OCI runtime that the settings choose. Rejects, in words, when there is none. */
export function chooseRuntime(config: Config): Promise<FoundRuntime> {
  return findRuntime({
    name: config.runtime === 'auto' ? null : config.runtime,
    searchPath: process.env['PATH'] ?? '',
    stateDir: join(config.dataDir, 'runtime'),
    initBinary: DEFAULT_OCI_SETTINGS.initBinary,
  })
}

/** Where the settings keep volumes. */
export function storagePlan(config: Config): StoragePlan {
  return { dir: join(config.dataDir, 'volumes'), sharedDir: config.sharedVolumesDir, poolGib: config.volumePoolGib }
}

/** Opens the storage for volumes. Rejects when the volumes that are there can't be reached. */
export function openStorage(config: Config, log: Log): Promise<VolumeStorage> {
  return openVolumeStorage(storagePlan(config), { uidShift: UID_SHIFT, clock: systemClock, log })
}

/** Opens the logs of the sandboxes that run here. */
export function openLogs(config: Config, log: Log): Promise<SandboxLogs> {
  return openSandboxLogs({
    dir: join(config.dataDir, 'logs'),
    limits: { sandboxBytes: config.logLimitMib * 1024 * 1024, keepMs: config.logKeepHours * 3_600_000 },
    clock: systemClock,
    log,
  })
}

/** Opens the driver that the settings choose. Rejects, in words, with what the machine lacks for it. */
export async function openDriver(
  config: Config,
  {
    folder,
    storage,
    logs,
    log,
  }: {
    readonly folder: DataFolder
    readonly storage: VolumeStorage
    readonly logs: Pick<SandboxLogs, 'of'>
    readonly log: Log
  },
): Promise<Driver> {
  if (config.driver === 'simulated') return makeSimulatedDriver({ clock: systemClock, logs })
  const runtime = await chooseRuntime(config)
  for (const flaw of runtime.passedOver) log.warn({ flaw }, 'a stronger OCI runtime is installed and can not be used')
  const networks = await makeNetworks({
    dir: join(config.dataDir, 'network'),
    pool: config.networkPool,
    namePrefix: folder.namePrefix,
    hostResolvers: await readHostResolvers(),
    hardDeny: [],
    hasRebindProtection: true,
    readyAhead: config.readyAhead,
    clock: systemClock,
    random: systemRandom,
    log,
  })
  const images = await openImages(config, log)
  const guests = makeContainerGuests({ log, pty: loadPtyBinding() })
  const driver = await makeOciDriver({
    dir: sandboxFolder(config),
    runtime,
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
        log.error({ error }, 'a command channel ended in a way that it should not')
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
    },
  }
}
