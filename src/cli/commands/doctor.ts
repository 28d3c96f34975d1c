import { access, constants } from 'node:fs/promises'
import type { Config } from '../../config.ts'
import type { WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import { describePublishing } from '../../domain/workers/publishing.ts'
import { localCommands } from '../../lib/run-command.ts'
import { once } from '../../lib/turns/once.ts'
import { systemRandom } from '../../lib/random.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { measureCapacity } from '../../worker/drivers/shared/machine.ts'
import { NO_DISK_RESERVE } from '../../worker/disk-reserve.ts'
import { findMissingOciRequirements, findMissingToolboxPrograms } from '../../worker/drivers/oci/run/runtime/probe.ts'
import {
  findMissingForDiskImages,
  findMissingForHostStat,
  findMissingForImageFormats,
  tryFuse,
} from '../../worker/drivers/oci/run/disk-image-abilities.ts'
import { openCgroups } from '../../worker/drivers/oci/cgroups/open-cgroups.ts'
import { limitsLacking, parentLimitsOf } from '../../worker/drivers/oci/run/limits/limit-runs.ts'
import { describeConnectionBound, readConnectionTableSize } from '../../worker/network/connection-bound.ts'
import { probeNetwork } from '../../worker/network/probe-network.ts'
import { chooseStorage } from '../../worker/volumes/open-volume-storage.ts'
import type { Command } from 'commander'
import { addSettings, runs, type Call } from '../command.ts'
import { chooseDriver, surveyDrivers, type DriverChoice, type DriverSurvey } from '../worker/choose-driver.ts'
import { describeSsh } from '../server/ssh-fingerprint.ts'
import { checkServerRole } from '../server/server-role.ts'
import { checkUserIds } from '../worker/check-user-ids.ts'
import { describeCapacity, readMachine } from '../worker/describe-capacity.ts'
import { describeNetworkProof } from '../worker/describe-network-proof.ts'
import { describeSnapshots } from '../worker/describe-snapshots.ts'
import { chooseRuntime, limitSettings } from '../worker/open-oci-driver.ts'
import { diskReserve, volumeStorageConfig } from '../worker/worker-storage.ts'

/** Defines `sandyard doctor`, which reports which sandboxes this machine can run. */
export function defineDoctor(doctor: Command): void {
  doctor.addHelpText('after', '\nThe exit code is 0 when the chosen driver can run sandboxes here, and 1 otherwise.')
  runs(addSettings(doctor, 'dataDir', 'driver', 'runtime', 'logLevel'), runDoctor)
}

type Finding = { readonly name: string; readonly isOk: boolean; readonly detail: string }

/** Checks whose failure doesn't prevent sandboxes from running, or that pass after the first start. */
const OPTIONAL_FINDINGS = [
  'data folder',
  'database',
  'disk',
  'volumes',
  'files',
  'disk images',
  'host metadata',
  'user ids',
  'ssh',
]
/** Checks that matter only for the driver for OCI runtimes. */
const OCI_ONLY_FINDINGS = ['OCI runtime', 'programs', 'limits', 'network', 'disk images', 'host metadata', 'user ids']

async function runDoctor({ config }: Call): Promise<number> {
  const getRuntime = once(() => chooseRuntime(config))
  const surveys = await surveyDrivers(config, getRuntime)
  const choice = chooseDriver(config.driver, surveys)
  const findings: Finding[] = [
    { name: 'node', isOk: Number(process.versions.node.split('.')[0]) >= 24, detail: process.version },
    {
      name: 'user',
      isOk: process.getuid?.() === 0,
      detail: process.getuid?.() === 0 ? 'root' : 'not root: drivers that run sandboxes need root',
    },
    await check('data folder', async () => {
      await access(config.dataDir, constants.W_OK)
      return config.dataDir
    }),
    await check('database', () => checkServerRole(config)),
    await check('disk', async () => {
      const reserve = diskReserve(config)
      await reserve.require('no sandbox can start')
      return describeDisk(await reserve.measure('none'), config)
    }),
    await check('OCI runtime', async () => {
      const { isolation, unusable } = await getRuntime()
      return [isolation, ...unusable.map((flaw) => `skipped: ${flaw}`)].join('; ')
    }),
    await check('programs', () => {
      const missing = findMissingOciRequirements(DEFAULT_OCI_SETTINGS.initBinary)
      return missing.length === 0 ? Promise.resolve('all found') : Promise.reject(new Error(missing.join('; ')))
    }),
    await check('files', () => {
      const missing = findMissingToolboxPrograms()
      if (missing.length > 0)
        return Promise.reject(new Error(`files of sandboxes can't be served; missing: ${missing.join(', ')}`))
      return Promise.resolve('perl serves the files of sandboxes')
    }),
    await check('disk images', async () => {
      const [raw, others] = [findMissingForDiskImages(), findMissingForImageFormats()]
      const flaw = await tryFuse(localCommands)
      const lacking = flaw === null ? raw : [...raw, flaw]
      if (lacking.length > 0) throw new Error(`disk images can't be mounted: ${lacking.join('; ')}`)
      const formats =
        others.length === 0 ? 'raw, qcow2 and vmdk' : `raw; qcow2 and vmdk are refused: ${others.join('; ')}`
      return `mounted by FUSE with crun and runc: ${formats}`
    }),
    await check('host metadata', async () => {
      const flaw = await tryFuse(localCommands)
      const lacking = flaw === null ? findMissingForHostStat() : [flaw]
      if (lacking.length > 0) throw new Error(`stat_virtualization: off is refused: ${lacking.join('; ')}`)
      return 'stat_virtualization: off is served by FUSE with crun and runc'
    }),
    await check('snapshots', () => describeSnapshots(config.dataDir)),
    await check('volumes', async () => {
      const choice = await chooseStorage(volumeStorageConfig(config))
      if (choice.kind === 'pool')
        return 'in a btrfs file with quota groups: size limits and quota_mib are enforced while a sandbox writes'
      if (!choice.isShared) throw new Error(`plain folders; size limits and quota_mib are refused: ${choice.whyNoCaps}`)
      return `plain folders in ${choice.root}; size limits and quota_mib are refused: ${choice.whyNoCaps}`
    }),
    await check('limits', async () => {
      const { memoryBytes, pids } = parentLimitsOf({ hostReserveMib: config.hostReserveMib, allPidsLimit: null })
      const probe = await openCgroups(`sandyard/doctor-${String(process.pid)}`, { memoryBytes, pids })
      await probe.close()
      const lacking = limitsLacking(probe, { memoryBytes })
      const lacks = lacking.length === 0 ? '' : `; this kernel lacks ${lacking.join(' and ')}`
      const together = `${String(memoryBytes / 1024 / 1024)} MiB and ${String(pids)} processes`
      const init = probe.initFlaw === null ? '' : `; the field init is refused: ${probe.initFlaw}`
      return `all sandboxes together: ${together} (cgroup v${String(probe.version)})${lacks}${init}`
    }),
    await check('capacity', async () => {
      const machine = readMachine(config.hostReserveMib)
      const settings = { ...limitSettings(config), diskReserve: NO_DISK_RESERVE, diskOvercommit: config.diskOvercommit }
      return describeCapacity(await measureCapacity(settings, Infinity), { machine, defaultDiskMib: config.diskMib })
    }),
    await check('connections', async () =>
      describeConnectionBound(config.connectionsPerSandbox, await readConnectionTableSize()),
    ),
    await check('ports', () =>
      Promise.resolve(
        config.publish === null
          ? 'sandboxes may publish ports on 127.0.0.1 and ::1 with `sandyard up`, and none with `sandyard worker` (SANDYARD_PUBLISH)'
          : describePublishing(config.publish),
      ),
    ),
    await check('ssh', () => describeSsh(config)),
    await check('user ids', () => checkUserIds(config)),
    await check('network', async () => {
      const probe = await probeNetwork(systemRandom)
      if (probe.missing.length > 0) throw new Error(probe.missing.join('; '))
      return `abilities: ${probe.abilities.join(', ')}`
    }),
    ...(choice.name === 'kubernetes' ? [await check('pod network', () => describeNetworkProof(config))] : []),
  ]
  for (const { name, isOk, detail } of findings)
    process.stdout.write(`${isOk ? 'ok     ' : 'MISSING'}  ${name.padEnd(12)} ${detail}\n`)
  process.stdout.write(formatDrivers(surveys, choice).join(''))
  const unneeded = [...OPTIONAL_FINDINGS, ...(choice.name === 'oci' ? [] : OCI_ONLY_FINDINGS)]
  const needed = findings.filter(({ name }) => !unneeded.includes(name))
  const chosen = surveys.find(({ name }) => name === choice.name)
  return needed.every(({ isOk }) => isOk) && (chosen?.missing.length ?? 0) === 0 ? 0 : 1
}

/** Describes the file system with the data folder, and the disks of sandboxes that it can have. */
function describeDisk(disk: WorkerDisk | null, { diskMib, diskOvercommit }: Config): string {
  if (disk === null)
    return 'SANDYARD_DISK_RESERVE_MIB is 0: sandboxes may fill the disk, and the control plane then stops'
  const { free_mib, total_mib, reserve_mib, pressure } = disk
  const promised = Math.max(0, free_mib - reserve_mib) * diskOvercommit
  const disks = `new disks may promise ${String(promised)} MiB, which is ${String(Math.floor(promised / diskMib))} of ${String(diskMib)} MiB (SANDYARD_DISK_OVERCOMMIT is ${String(diskOvercommit)})`
  const warning = pressure === 'none' ? '' : '; nearly full'
  return `${String(free_mib)} of ${String(total_mib)} MiB are free, ${String(reserve_mib)} of them are the reserve of the control plane${warning}; ${disks}`
}

/** Formats the surveys of the drivers, in the order of preference, and the chosen driver. Each string is one line. */
export function formatDrivers(surveys: readonly DriverSurvey[], choice: DriverChoice): readonly string[] {
  const line = (name: string, text: string): string => `  ${name.padEnd(13)} ${text}\n`
  const lines = surveys.flatMap(({ name, isolation, missing, refusedFields, hasSandboxes }) => {
    const text = missing.length === 0 ? `can run here: ${isolation}` : `can't run here: ${missing.join('; ')}`
    return [
      line(name, hasSandboxes ? `${text}; this machine holds sandboxes of it` : text),
      // The field names contain backticks for docs/drivers.md.
      line('', `refuses: ${refusedFields.join(', ').replaceAll('`', '')}`),
    ]
  })
  return [
    '\ndrivers, in order of preference:\n',
    ...lines,
    line('simulated', 'runs nothing; used only when SANDYARD_DRIVER names it'),
    `sandboxes run with: ${choice.name}, because ${choice.reason}\n`,
  ]
}

async function check(name: string, look: () => Promise<string>): Promise<Finding> {
  try {
    return { name, isOk: true, detail: await look() }
  } catch (error) {
    return { name, isOk: false, detail: error instanceof Error ? error.message : String(error) }
  }
}
