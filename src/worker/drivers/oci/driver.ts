import { readFile } from 'node:fs/promises'
import { asId, type RunId, type SandboxId } from '../../../domain/ids.ts'
import type { ObservedRun, DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { debounce } from '../../../lib/debounce.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import type { Driver } from '../driver.ts'
import { makeHeldRuns } from '../shared/held-runs.ts'
import { throwIfEnded, makeStartsInFlight } from '../shared/starts.ts'
import { makeRunActivity } from './run/run-activity.ts'
import { makeOutputCaptures } from './run/output-captures.ts'
import { openCgroups, cgroupParentOf } from './run/cgroup.ts'
import type { Container } from './exec/container.ts'
import type { OciContext, OciDriverInput } from './context.ts'
import { openSandboxDisks } from './disk/disk.ts'
import { removeIfUnused, adoptRuns } from './run/leftovers.ts'
import { makeMountDir, mountFolderOf } from '../../mounts.ts'
import { observeRun } from './run/observe.ts'
import { probeMachine, assertMachineUsable } from './run/probe.ts'
import { isAlive, makeCachedLivenessCheck, readBootId } from '../../processes/process-identity.ts'
import { recordEnd, removeMounts, releaseIfEnded } from './run/release.ts'
import { parseHardLimits } from './run/rlimits.ts'
import { openOciRunRecords, type OciRunRecord } from './run/run-records.ts'
import { mountDisk, rootfsPaths } from '../shared/rootfs.ts'
import { startRun } from './run/start.ts'
import { stopProcesses } from './run/stop.ts'
import { mountToolbox } from './rootfs/toolbox-mount.ts'
import { makeKeyedMutex } from '../../../lib/keyed-mutex.ts'
import { makeRunWatch } from '../shared/run-watch.ts'

/**
 * The driver for OCI runtimes. It adopts what earlier workers left in `dir`: runs that live go on, starts that were cut
 * short are undone and forgotten (the control plane asks for them again), and no mount, network or cgroup of a dead run
 * stays. Rejects, in words, when the machine can't be used.
 */
export async function makeOciDriver(input: OciDriverInput): Promise<Driver> {
  assertMachineUsable(input.settings.initBinary)
  const context = await openContext(input)
  const { records, disks, log } = context
  const mutex = makeKeyedMutex()
  const starts = makeStartsInFlight(mutex, () => {
    watch.checkSoon()
  })
  await adoptRuns(context)

  const see = async (record: OciRunRecord, isBeingStarted: boolean): Promise<ObservedRun> => {
    const phase = await observeRun(context, record, isBeingStarted)
    if (phase.phase === 'ended') await context.captures.finish(record) // the end is told behind the last output
    const { idle_timeout_secs } = record.spec.lifecycle
    const { run_id, sandbox_id, facts } = record
    if (phase.phase !== 'running' || idle_timeout_secs === null) return { run_id, sandbox_id, ...phase, facts }
    activity.track(run_id, idle_timeout_secs)
    return { run_id, sandbox_id, ...phase, facts, ...(activity.isIdle(run_id) ? { is_idle_expired: true } : {}) }
  }
  const settleOne = (record: OciRunRecord): Promise<OciRunRecord> => releaseIfEnded(context, record)
  const { list, settleEnded: releaseEnded } = makeHeldRuns<OciRunRecord>({
    records,
    starts,
    mutex,
    see,
    settle: settleOne,
  })
  const watch = makeRunWatch({ list, releaseEnded, exitsFolder: records.endsFolder, clock: input.clock, log })
  const activity = makeRunActivity(input.clock, () => {
    watch.notify()
  })
  const refill = makeRefill(context)
  refill.start()

  const begin = async (wanted: DesiredRun, signal: AbortSignal): Promise<void> => {
    const known = await records.read(wanted.run_id)
    if (known !== null) return throwIfEnded(await observeRun(context, known, false))
    const holder = await disks.holderOf(wanted.sandbox_id)
    if (holder !== null && holder !== wanted.run_id) await releaseEnded(holder)
    await startRun(context, wanted, signal)
    refill.ask()
  }
  const end = async (run: RunId, graceMs: number): Promise<OciRunRecord | null> => {
    await starts.cancel(run)
    const record = await mutex.run(run, async () => {
      const settled = await settleIfKnown(run)
      if (settled === null || settled.is_released) return settled
      const stopping: OciRunRecord = { ...settled, is_stop_requested: true }
      await records.write(stopping)
      if (!settled.is_stop_requested) context.logs.writerOf(settled.sandbox_id).system(LIFECYCLE_LINES.stopRequested)
      watch.checkSoon()
      await stopProcesses(context, stopping, graceMs)
      return await recordEnd(context, stopping, { kind: 'stopped' })
    })
    watch.checkSoon()
    return record
  }
  const settleIfKnown = async (run: RunId): Promise<OciRunRecord | null> => {
    const record = await records.read(run)
    return record === null ? null : await settleOne(record)
  }

  return {
    name: 'oci',
    probe: () => probeMachine(context),
    list,
    listStored: () => disks.list(),
    start: (wanted, signal) => starts.start(wanted.run_id, signal, (either) => begin(wanted, either)),
    async stop(run, graceMs) {
      await end(run, graceMs)
    },
    async remove(run) {
      const record = await end(run, 0)
      if (record === null) return
      await mutex.run(run, () => records.delete(run))
      context.captures.forget(run)
      activity.forget(run)
      watch.checkSoon()
    },
    async discard(sandbox: SandboxId) {
      const held = (await records.list()).find((record) => record.sandbox_id === sandbox)
      if (held !== undefined) throw new Error(`sandbox ${sandbox} has run ${held.run_id}: remove it first`)
      await disks.delete(sandbox)
    },
    async openChannel(run) {
      const record = await records.read(run)
      const container = record === null ? null : await containerOf(context, record)
      if (record === null || container === null) throw new Error(`run ${run} is not running`)
      const use = {
        touch: () => {
          activity.touch(run)
        },
        hold: () => activity.hold(run),
      }
      return input.openGuestChannel(container, use, context.logs.writerOf(record.sandbox_id))
    },
    watch: (onChange) => watch.subscribe(onChange),
    async close() {
      await watch.close()
      await activity.close()
      await starts.close()
      context.captures.close()
      await refill.close()
      await disks.drainPool()
      await removeIfUnused(context)
    },
  }
}

async function openContext(input: OciDriverInput): Promise<OciContext> {
  const mountFolder = mountFolderOf(input.dir)
  const [records, disks, cgroups, mountDir, bootId, limits] = await Promise.all([
    openOciRunRecords(input.dir),
    openSandboxDisks({
      dir: `${input.dir}/disks`,
      defaultSizeMib: input.settings.defaultDiskMib,
      poolSize: input.settings.diskPool,
      random: input.random,
      commands: input.commands,
      mountPooled: (name, path) => mountDisk(input, rootfsPaths(mountFolder, name), path),
      unmountPooled: (name) => removeMounts({ ...input, mountDir: mountFolder }, name),
    }),
    openCgroups(cgroupParentOf(input.dir)),
    makeMountDir(input.dir),
    readBootId(),
    readFile('/proc/self/limits', 'utf8'),
  ])
  const toolbox = await mountToolbox({ dir: input.dir, mountDir }, input.log)
  const { logs, clock, log } = input
  const captures = makeOutputCaptures({ records, bootId, logs, clock, log })
  const hardLimits = parseHardLimits(limits)
  const liveness = makeCachedLivenessCheck(clock)
  return { ...input, records, captures, disks, cgroups, mountDir, bootId, isAlive: liveness, toolbox, hardLimits }
}

/** What an exec needs of a running container; null when the run is not running. */
async function containerOf(context: OciContext, record: OciRunRecord): Promise<Container | null> {
  const { started, image, spec } = record
  // Asked anew: by its id the container's root is found, and that of one that just ended may be another process's by now.
  const seen = await observeRun({ ...context, isAlive }, record, false)
  if (seen.phase !== 'running' || started === null || started.init === null || image === null) return null
  return {
    id: record.run_id,
    runtime: started.runtime.command,
    runtimeName: started.runtime.name,
    initPid: started.init.pid,
    rootPath: rootPathOf(context, record.run_id, { name: started.runtime.name, initPid: started.init.pid }),
    uidShift: started.uid_shift,
    runDir: context.records.folderOf(asId<RunId>(record.run_id)),
    spec,
    image,
  }
}

/** gVisor's and a virtual machine's processes have no root that the host could enter: it reads what it mounted. */
function rootPathOf(
  { mountDir }: OciContext,
  run: RunId,
  { name, initPid }: { readonly name: Container['runtimeName']; readonly initPid: number },
): string {
  return name === 'crun' || name === 'runc' ? `/proc/${String(initPid)}/root` : rootfsPaths(mountDir, run).root
}

/** A start takes some 100 ms; under a stream of them the pool is filled all the same. */
const QUIET_MS = 250
const LATEST_MS = 1_000

type Refill = { start(): void; ask(): void; close(): Promise<void> }

/**
 * Formats disks ahead, one round at a time. After a start it waits until no other one follows for a moment: the
 * formatting would take the processor from the report that the sandbox runs.
 */
function makeRefill({ disks, log, clock }: OciContext): Refill {
  let current: Promise<void> | null = null
  const start = (): void => {
    current ??= disks
      .fillPool()
      .catch((error: unknown) => {
        log.warn({ err: error }, 'formatting disks ahead failed')
      })
      .finally(() => {
        current = null
      })
  }
  const later = debounce({ clock, delayMs: QUIET_MS, maxWaitMs: LATEST_MS, work: start })
  return {
    start,
    ask: () => {
      later.schedule()
    },
    async close() {
      later.close()
      await current
    },
  }
}
