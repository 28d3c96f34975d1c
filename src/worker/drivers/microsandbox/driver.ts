import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Ability } from '../../../domain/abilities.ts'
import { asId, type SandboxId } from '../../../domain/ids.ts'
import { readBootId } from '../../processes/process-identity.ts'
import { StartError } from '../../start-error.ts'
import type { Driver, Probe } from '../driver.ts'
import { supportedBy } from '../shared/network-abilities.ts'
import { reportRefusals } from '../shared/report-refusals.ts'
import { newRunRecord } from '../shared/run-records.ts'
import { openRunSupervisor, type RunOperations } from '../shared/run-supervisor.ts'
import { connectAgent } from './agent-socket.ts'
import type { MicrosandboxDriverInput, VmContext } from './context.ts'
import { measureDiskLimitMib, measureTakenBytes } from './disk-limit.ts'
import { findMissingForVmDisks, findMissingForVmHostStat } from './disk-images.ts'
import { makeGuestHeartbeats } from './guest-heartbeats.ts'
import { assertHomeShortEnough, vmPaths, describeIsolation, findMissingMicroVmRequirements } from './installation.ts'
import { listPinnedSandboxes, unpinMountSources } from './mount-sources.ts'
import { makeMsbCli } from './msb-cli.ts'
import { makeOutputCaptures } from './output-captures.ts'
import { readLastOutput, releaseRun, stopVm } from './release.ts'
import { resumeCapture, startVm } from './start.ts'
import { openStoredSandboxes } from './stored-sandboxes.ts'
import { openVmImages } from './vm-images.ts'
import { observeVm } from './vm-phase.ts'
import { makeUselessCertificate } from './vm-surroundings.ts'
import { openVmMeter } from './vm-meter.ts'
import { openVmRunRecords, type VmRunRecord } from './vm-records.ts'
import { measureCapacity } from '../shared/machine.ts'
import { isolationAbilities } from '../../../domain/isolation.ts'
import { MICROSANDBOX_ABILITIES } from './make-vm-config.ts'

/**
 * Opens the driver that runs each sandbox in a microVM of the genuine microsandbox runtime. Adopts the runs that
 * earlier workers left in `dir`. Rejects when `dir` can't be used. The error message tells the operator the reason.
 */
export async function makeMicrosandboxDriver(input: MicrosandboxDriverInput): Promise<Driver> {
  const context = await openContext(input)
  const { records, storedSandboxes, msb, home, captures } = context
  const operations = makeRunOperations(context)
  const supervisor = await openRunSupervisor({ ...context, operations })
  await removeLeftovers(context)
  reportRefusals(context, supervisor)
  return {
    name: 'microsandbox',
    probe: () => probeVm(context),
    list: () => supervisor.list(),
    listStored: () => storedSandboxes.list(),
    start: (desired, signal) => supervisor.start(desired, signal),
    stop: (run, graceMs, outcome) => supervisor.stop(run, graceMs, outcome),
    setSecrets: (run, given) => input.networks.setSecrets(run, given),
    remove: (run) => supervisor.remove(run),
    async discard(sandbox) {
      supervisor.assertNoRunOf(sandbox)
      if ((await storedSandboxes.read(sandbox)) === null) return
      await msb.remove(vmPaths(home, sandbox).name)
      await storedSandboxes.delete(sandbox)
    },
    async measureDisks() {
      const live = records.list().filter(({ is_released }) => !is_released)
      return await Promise.all(
        live.map(async ({ run_id, sandbox_id }) => ({ run_id, takenBytes: await measureTakenBytes(home, sandbox_id) })),
      )
    },
    async openChannel(run) {
      const record = records.read(run)
      const observed = record === null ? null : await observeVm(context, record, false)
      if (record === null || observed?.phase !== 'running') throw new Error(`run ${run} is not running`)
      return await connectAgent(vmPaths(home, record.sandbox_id).agentSocket)
    },
    watch: (onChange) => supervisor.watch(onChange),
    async close() {
      await supervisor.close()
      await captures.close()
    },
  }
}

function makeRunOperations(context: VmContext): RunOperations<VmRunRecord> {
  const { records, home, bootId, clock } = context
  const heartbeats = makeGuestHeartbeats(clock)
  return {
    async newRecord(desired) {
      // All runs of a sandbox share one virtual machine. If this run started while another one is live, the clean-up of
      // a failed start would end the other run.
      if (records.listOf(desired.sandbox_id).some((record) => !record.is_released))
        throw new StartError('disk', 'another run of the sandbox still holds its disk')
      const { idle_timeout_secs } = desired.spec.lifecycle
      return { ...newRunRecord(desired, bootId), idle_timeout_secs }
    },
    start: (desired, record, attempt) => startVm(context, desired, { record, ...attempt }),
    async observe(record, isBeingStarted) {
      const phase = await observeVm(context, record, isBeingStarted)
      if (phase.phase === 'ended') await context.networks.unpublish(record.run_id)
      return phase
    },
    async isIdle({ run_id, sandbox_id, idle_timeout_secs }) {
      if (idle_timeout_secs === null) return false
      return await heartbeats.isIdle(run_id, vmPaths(home, sandbox_id).runtime, idle_timeout_secs)
    },
    stopProcesses: (record, graceMs) => stopVm(context, record, graceMs),
    readLastOutput: (record, outcome) => readLastOutput(context, record, outcome),
    release: (record) => releaseRun(context, record),
    openMeter({ run_id, sandbox_id, started }) {
      if (started === null) throw new Error(`run ${run_id} has not started`)
      return openVmMeter({ home, sandbox: sandbox_id, pid: started.vm.pid, log: context.log })
    },
    resumeOutput(record) {
      resumeCapture(context, record)
    },
    forget(run) {
      heartbeats.forget(run)
    },
  }
}

async function openContext(input: MicrosandboxDriverInput): Promise<VmContext> {
  const home = join(input.dir, 'home')
  assertHomeShortEnough(home)
  await mkdir(home, { recursive: true, mode: 0o700 })
  const msb = makeMsbCli(input.installation, home)
  const { dir, clock } = input
  const [records, storedSandboxes, vmImages, bootId] = await Promise.all([
    openVmRunRecords(dir),
    openStoredSandboxes(dir),
    openVmImages({ dir, uidShift: input.settings.uidShift, msb, clock }),
    readBootId(),
  ])
  return {
    ...input,
    home,
    msb,
    records,
    storedSandboxes,
    vmImages,
    bootId,
    captures: makeOutputCaptures(input),
    uselessCertificate: makeUselessCertificate(input),
  }
}

/** Removes the mounts of sandboxes without a live run, and the images that no disk and no reference uses. */
async function removeLeftovers(context: VmContext): Promise<void> {
  const { records, storedSandboxes, vmImages } = context
  const live = records.list().filter((record) => !record.is_released)
  const mounted = new Set<string>(live.map((record) => record.sandbox_id))
  for (const sandbox of await listPinnedSandboxes(context)) {
    if (!mounted.has(sandbox)) await unpinMountSources(context, asId<SandboxId>(sandbox))
  }
  const disks = await Promise.all((await storedSandboxes.list()).map((sandbox) => storedSandboxes.read(sandbox)))
  const underDisks = disks.flatMap((disk) => (disk === null ? [] : [disk.image.digest]))
  await vmImages.deleteExcept(new Set([...underDisks, ...(await context.imageDigests())]))
}

/**
 * Reports the machine's capacity and the driver's abilities. Rejects when the machine can't run microVMs. The error
 * message lists everything that is missing.
 */
async function probeVm({ home, images, installation, networks, settings }: VmContext): Promise<Probe> {
  const missing = await findMissingMicroVmRequirements()
  if (missing.length > 0) throw new Error(`microVMs can't run here: ${missing.join('; ')}`)
  return {
    report: {
      name: 'microsandbox',
      isolation: describeIsolation(installation.version),
      abilities: [...abilitiesHere(networks), ...isolationAbilities('microvm')],
      images: await images.list(),
      default_disk_mib: Math.min(settings.defaultDiskMib, settings.maxDiskMib),
      publishes: networks.publishes,
    },
    capacity: await measureCapacity(settings, await measureDiskLimitMib(home, settings)),
  }
}

/** The abilities of this driver that this machine supports. */
function abilitiesHere(networks: VmContext['networks']): readonly Ability[] {
  const lacking: readonly Ability[] = [
    ...(findMissingForVmDisks().length > 0 ? (['disk_images', 'disk_image_formats'] as const) : []),
    ...(findMissingForVmHostStat().length > 0 ? (['raw_stat'] as const) : []),
  ]
  return supportedBy(networks, MICROSANDBOX_ABILITIES).filter((ability) => !lacking.includes(ability))
}
