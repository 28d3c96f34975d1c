import { readFile } from 'node:fs/promises'
import { readBootId, isAlive, makeCachedLivenessCheck } from '../../processes/process-identity.ts'
import { makeMountDir, mountFolderOf } from '../../mounts.ts'
import type { Driver } from '../driver.ts'
import { newRunRecord } from '../shared/run-records.ts'
import { openRunSupervisor, type RunOperations } from '../shared/run-supervisor.ts'
import type { Container } from './container.ts'
import type { OciContext, OciDriverInput } from './context.ts'
import { makeDiskPoolFiller, type DiskPoolFiller } from './disk/disk-pool-filler.ts'
import { openSandboxDisks } from './disk/sandbox-disks.ts'
import { mountDisk, rootfsPaths } from './rootfs/root-mounts.ts'
import { mountToolbox } from './rootfs/toolbox.ts'
import { cgroupParentOf, openCgroups } from './run/cgroup.ts'
import { killOrphanedShims, removeIfUnused, removeUnrecordedRuns } from './run/leftovers.ts'
import { makeOutputCaptures } from './run/output-captures.ts'
import { assertMachineUsable, probeMachine } from './run/probe.ts'
import { releaseRun, removeMounts } from './run/release.ts'
import { parseHardLimits } from './run/rlimits.ts'
import { makeRunActivity, type RunActivity } from './run/run-activity.ts'
import { observeRun } from './run/run-phase.ts'
import { openOciRunRecords, type OciRunRecord } from './run/run-records.ts'
import { startRun } from './run/start.ts'
import { stopProcesses } from './run/stop-processes.ts'

/**
 * Opens the driver that runs sandboxes with an OCI runtime. Adopts the runs that earlier workers left in `dir`. Removes every
 * mount, network and cgroup of a run without a record. Rejects when the machine can't run sandboxes; the message tells the
 * operator why.
 */
export async function makeOciDriver(input: OciDriverInput): Promise<Driver> {
  assertMachineUsable(input.settings.initBinary)
  const context = await openContext(input)
  const { records, disks, captures, logs, clock, log } = context
  const poolFiller = makeDiskPoolFiller(disks, { clock, log })
  const activity = makeRunActivity(clock, () => {
    supervisor.checkSoon()
  })
  const operations = makeRunOperations(context, { activity, poolFiller })
  await killOrphanedShims(context)
  const supervisor = await openRunSupervisor({ records, operations, logs, clock, log })
  await removeUnrecordedRuns(context)
  poolFiller.fill()
  return {
    name: 'oci',
    probe: () => probeMachine(context),
    list: () => supervisor.list(),
    listStored: () => disks.list(),
    start: (desired, signal) => supervisor.start(desired, signal),
    stop: (run, graceMs) => supervisor.stop(run, graceMs),
    remove: (run) => supervisor.remove(run),
    async discard(sandbox) {
      await supervisor.assertNoRunOf(sandbox)
      await disks.delete(sandbox)
    },
    async openChannel(run) {
      const record = await records.read(run)
      const container = record === null ? null : await containerOf(context, record)
      if (record === null || container === null) throw new Error(`run ${run} is not running`)
      const usage = {
        touch: () => {
          activity.touch(run)
        },
        hold: () => activity.hold(run),
      }
      return input.openGuestChannel(container, usage, logs.writerOf(record.sandbox_id))
    },
    watch: (onChange) => supervisor.watch(onChange),
    async close() {
      await supervisor.close()
      await activity.close()
      captures.close()
      await poolFiller.close()
      await disks.drainPool()
      await removeIfUnused(context)
    },
  }
}

type RunServices = { readonly activity: RunActivity; readonly poolFiller: DiskPoolFiller }

function makeRunOperations(context: OciContext, { activity, poolFiller }: RunServices): RunOperations<OciRunRecord> {
  const { captures, bootId } = context
  return {
    newRecord: (desired) => Promise.resolve({ ...newRunRecord(desired, bootId), spec: desired.spec, image: null }),
    async start(desired, record, signal) {
      await startRun(context, desired, { record, signal })
      poolFiller.fillLater()
    },
    async observe(record, isBeingStarted) {
      const phase = await observeRun(context, record, isBeingStarted)
      if (phase.phase === 'ended') await captures.finish(record) // read the last output before the end is reported
      return phase
    },
    isIdle({ run_id, spec }) {
      const { idle_timeout_secs } = spec.lifecycle
      if (idle_timeout_secs === null) return false
      activity.track(run_id, idle_timeout_secs)
      return activity.isIdle(run_id)
    },
    stopProcesses: (record, graceMs) => stopProcesses(context, record, graceMs),
    readLastOutput: (record) => captures.finish(record),
    release: (record) => releaseRun(context, record),
    resumeOutput(record) {
      captures.begin({ ...record, shim: record.started?.shim ?? null })
    },
    forget(run) {
      captures.forget(run)
      activity.forget(run)
    },
  }
}

async function openContext(input: OciDriverInput): Promise<OciContext> {
  const { dir, settings, random, commands, logs, clock, log } = input
  const mountFolder = mountFolderOf(dir)
  const [records, disks, cgroups, mountDir, bootId, limits] = await Promise.all([
    openOciRunRecords(dir),
    openSandboxDisks({
      dir: `${dir}/disks`,
      defaultSizeMib: settings.defaultDiskMib,
      poolSize: settings.diskPool,
      random,
      commands,
      mountPooled: (name, path) => mountDisk(input, rootfsPaths(mountFolder, name), path),
      unmountPooled: (name) => removeMounts({ ...input, mountDir: mountFolder }, name),
    }),
    openCgroups(cgroupParentOf(dir)),
    makeMountDir(dir),
    readBootId(),
    readFile('/proc/self/limits', 'utf8'),
  ])
  return {
    ...input,
    records,
    captures: makeOutputCaptures({ records, bootId, logs, clock, log }),
    disks,
    cgroups,
    mountDir,
    bootId,
    isAlive: makeCachedLivenessCheck(clock),
    toolbox: await mountToolbox({ dir, mountDir }, log),
    hardLimits: parseHardLimits(limits),
  }
}

/** Returns the container of a running run, or null if the run is not running. */
async function containerOf(context: OciContext, record: OciRunRecord): Promise<Container | null> {
  const { run_id, started, image, spec } = record
  // Don't use the cached check. The container's root is found by a process id, which may belong to a new process by now.
  const observed = await observeRun({ ...context, isAlive }, record, false)
  if (observed.phase !== 'running' || started === null || started.init === null || image === null) return null
  const { name, command } = started.runtime
  const initPid = started.init.pid
  // With gVisor or a virtual machine, the host can't enter the root of the sandbox's processes. It reads the root that it
  // mounted instead.
  const hasHostRoot = name === 'crun' || name === 'runc'
  return {
    id: run_id,
    runtime: command,
    runtimeName: name,
    initPid,
    rootPath: hasHostRoot ? `/proc/${String(initPid)}/root` : rootfsPaths(context.mountDir, run_id).root,
    uidShift: started.uid_shift,
    runDir: context.records.folderOf(run_id),
    spec,
    image,
  }
}
