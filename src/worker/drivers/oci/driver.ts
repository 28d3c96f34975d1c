import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId } from '../../../domain/ids.ts'
import { countMemoryKills, openKernelLog } from '../../processes/kernel-log.ts'
import { readBootId, isAlive, makeCachedLivenessCheck } from '../../processes/process-identity.ts'
import { makeMountDir, mountFolderOf } from '../../mounts.ts'
import type { Driver } from '../driver.ts'
import { openRunSupervisor } from '../shared/run-supervisor.ts'
import type { Container } from './container.ts'
import type { OciContext, OciDriverInput } from './context.ts'
import { makeKeyedMutex } from '../../../lib/turns/keyed-mutex.ts'
import { repeat } from '../../../lib/turns/repeat.ts'
import { openDiskSnapshots } from './disk/disk-snapshots.ts'
import { openSandboxDisks } from './disk/sandbox-disks.ts'
import { makePoolFiller, type PoolFiller } from '../shared/pool-filler.ts'
import { makeRunOperations } from './run-operations.ts'
import { mountDisk, rootfsPaths } from './rootfs/root-mounts.ts'
import { mountToolbox } from './rootfs/toolbox.ts'
import { cgroupParentOf } from './cgroups/open-cgroups.ts'
import { reclaimHostDevices } from './run/host-devices.ts'
import { describeImageFlaw, tryFuse } from './run/disk-image-abilities.ts'
import { makeGrowthLimits } from './run/limits/growth-limits.ts'
import { disownRuns, endOrphans, removeIfUnused, removeUnrecordedRuns } from './run/leftovers.ts'
import { limitAdoptedRuns, limitCommandsOf, openLimitedCgroups } from './run/limits/limit-runs.ts'
import { makeMemoryKills } from './run/limits/memory-kills.ts'
import { mountPipeFolder } from './run/pipe-folder.ts'
import { makeOutputCaptures } from './run/output-captures.ts'
import { assertMachineUsable, probeMachine } from './run/runtime/probe.ts'
import { removeMounts } from './run/release.ts'
import { parseHardLimits, sandboxHardLimits } from './users/rlimits.ts'
import { makeRunActivity } from '../shared/run-activity.ts'
import { observeRun } from './run/run-phase.ts'
import { containerIdOf, openOciRunRecords, type OciRunRecord } from './run/run-records.ts'
import { reportRefusals } from '../shared/report-refusals.ts'
import { joinsUserNamespaces } from './run/runtime/runtime.ts'
import { openSandboxUsers } from './users/sandbox-users.ts'
import { warmLimit } from './warm-limit.ts'
import { makeWarmSandboxes } from './warm/warm-sandboxes.ts'

/**
 * Opens the driver that runs sandboxes with an OCI runtime. Adopts the runs that earlier workers left in `dir`. Removes
 * every mount, network and cgroup of a run without a record. Rejects when the machine can't run sandboxes. The error
 * message tells the operator the reason.
 */
export async function makeOciDriver(input: OciDriverInput): Promise<Driver> {
  assertMachineUsable(input.settings.initBinary)
  await using opened = new AsyncDisposableStack() // a failure below closes what is open by then
  const context = await openContext(input, opened)
  const { records, disks, users, captures, logs, clock, log } = context
  const warm = makeWarmSandboxes(context)
  const poolFiller = makePoolFiller([disks, users, warm], { clock, log })
  opened.defer(async () => {
    await poolFiller.close()
    await warm.close()
    await context.growth.close()
    await context.memoryKills.close()
    await disks.drainPool()
  })
  opened.defer(() => {
    captures.close()
  })
  const activity = makeRunActivity(clock, () => {
    supervisor.checkSoon()
  })
  opened.defer(() => activity.close())
  const operations = makeRunOperations(context, { activity, poolFiller, warm })
  await disownRuns(context)
  await endOrphans(context)
  await reclaimHostDevices(log)
  await limitAdoptedRuns(context)
  await thawDisks(context)
  const supervisor = await openRunSupervisor({ ...context, operations })
  opened.defer(() => supervisor.close())
  await removeUnrecordedRuns(context)
  if (warmLimit(context) > 0) opened.use(keepShrinking(poolFiller, input))
  poolFiller.fill()
  context.growth.start()
  reportRefusals(context, supervisor)
  const runningContainer = async (run: OciRunRecord['run_id']) => {
    const record = records.read(run)
    const container = record === null ? null : await containerOf(context, record)
    if (record === null || container === null) throw new Error(`run ${run} is not running`)
    return { record, container }
  }
  const parts = opened.move()
  return {
    name: 'oci',
    probe: () => probeMachine(context),
    list: () => supervisor.list(),
    listStored: () => Promise.resolve(disks.list()),
    start: (desired, signal) => supervisor.start(desired, signal),
    stop: (run, graceMs, outcome) => supervisor.stop(run, graceMs, outcome),
    setSecrets: (run, given) => input.networks.setSecrets(records.containerIdOf(run), given),
    remove: (run) => supervisor.remove(run),
    async discard(sandbox) {
      supervisor.assertNoRunOf(sandbox)
      await disks.delete(sandbox)
    },
    snapshots: context.snapshots,
    async measureDisks() {
      const live = records.list().filter(({ is_released, started }) => !is_released && started !== null)
      return await Promise.all(
        live.map(async ({ run_id, sandbox_id }) => ({ run_id, takenBytes: await disks.takenBytes(sandbox_id) })),
      )
    },
    async openChannel(run) {
      poolFiller.postpone()
      const { container, record } = await runningContainer(run)
      const usage = { touch: () => activity.touch(run), hold: () => activity.hold(run) }
      return input.openGuestChannel(container, usage, logs.writerOf(record.sandbox_id))
    },
    async connect(run, target, signal) {
      const { container } = await runningContainer(run)
      const socket = await input.connectGuest(container, target, signal)
      return socket === null ? null : { socket, touch: () => activity.touch(run) }
    },
    watch: (onChange) => supervisor.watch(onChange),
    pools: () => [
      { name: 'disks', ready: disks.pooledCount, free: null },
      { name: 'user_namespaces', ready: users.pooledCount, free: null },
      { name: 'networks', ...input.networks.use() },
      { name: 'warm_sandboxes', ready: warm.pooledCount, free: null },
    ],
    warmStarts: () => warm.starts,
    close: () => parts.disposeAsync(),
  }
}

/** How often the warm sandboxes are compared with the starts of late while nothing starts. */
const SHRINK_INTERVAL_MS = 60_000

/** Ends warm sandboxes that nobody asks for any more. */
function keepShrinking(poolFiller: PoolFiller, { clock, log }: Pick<OciDriverInput, 'clock' | 'log'>): AsyncDisposable {
  const shrinking = repeat(() => poolFiller.fillLater(), {
    pauseMs: SHRINK_INTERVAL_MS,
    clock,
    onFailure: (error) => log.warn({ error }, 'warm sandboxes that nobody asks for could not be ended'),
  })
  return { [Symbol.asyncDispose]: () => shrinking.close() }
}

async function openContext(input: OciDriverInput, opened: AsyncDisposableStack): Promise<OciContext> {
  const { dir, key, settings, runtime, random, commands, folders, logs, clock, log } = input
  const mountFolder = mountFolderOf(key)
  const limited = await openLimitedCgroups(cgroupParentOf(key), settings, log)
  opened.defer(() => removeIfUnused({ mountDir: mountFolder, cgroups: limited.cgroups, clock, commands }))
  const mountDir = await makeMountDir(key)
  const [records, disks, bootId, limits] = await Promise.all([
    openOciRunRecords(dir),
    openSandboxDisks({
      dir: `${dir}/disks`,
      imagesDir: folders.images,
      defaultSizeMib: settings.defaultDiskMib,
      poolSize: settings.readyAhead,
      reserve: settings.diskReserve,
      overcommit: settings.diskOvercommit,
      random,
      clock,
      commands,
      mountPooled: (name, path) => mountDisk(input, rootfsPaths(mountFolder, name), path),
      unmountPooled: (name) => removeMounts({ ...input, mountDir: mountFolder }, name),
    }),
    readBootId(),
    readFile('/proc/self/limits', 'utf8'),
  ])
  const diskLocks = makeKeyedMutex()
  const snapshots = await openDiskSnapshots({
    dir: `${dir}/disks/snapshots`,
    imagesDir: folders.images,
    disks,
    diskLocks,
    mountedAt: (run) => rootfsPaths(mountFolder, records.containerIdOf(asId<RunId>(run))).disk,
    reserve: settings.diskReserve,
    commands,
    uidShift: settings.uidShift,
    clock,
  })
  const hardLimits = sandboxHardLimits(parseHardLimits(limits))
  const held = records
    .list()
    .flatMap(({ ids, is_released }) => (ids === undefined || is_released ? [] : [ids.range_first]))
  const users = await openSandboxUsers({
    range: settings.uidRange,
    held,
    startAt: parseInt(createHash('sha256').update(key).digest('hex').slice(0, 12), 16),
    storedShift: settings.uidShift,
    joinsNamespaces: joinsUserNamespaces(runtime.name),
    hardLimits,
    poolSize: settings.readyAhead,
    folders,
    scratch: join(dir, 'idmap-trial'),
    commands,
    log,
  })
  opened.defer(() => {
    users.close()
  })
  const imageFlaw = describeImageFlaw(runtime.name, users.flaws) ?? (await tryFuse(commands))
  if (imageFlaw !== null) log.info({ flaw: imageFlaw }, 'disk images can not be mounted here')
  return {
    ...input,
    records,
    users,
    captures: makeOutputCaptures({ records, bootId, logs, clock, log }),
    disks,
    diskLocks,
    snapshots,
    memoryKills: makeMemoryKills({
      cgroups: limited.cgroups,
      kernelLog: openKernelLog(),
      countKills: countMemoryKills,
      records,
      logs,
      clock,
      log,
    }),
    growth: makeGrowthLimits({ records, mountDir, reserve: settings.diskReserve, volumes: input.volumes, clock, log }),
    ...limited,
    mountDir,
    pipeDir: await mountPipeFolder(mountDir),
    bootId,
    isAlive: makeCachedLivenessCheck(clock),
    toolbox: await mountToolbox({ dir, mountDir }, settings.initBinary, log),
    hardLimits,
    imageFlaw,
  }
}

/** Thaws disks that a killed worker may have left frozen in the middle of a snapshot. Only a disk that is ready has snapshots. */
async function thawDisks({ records, disks, mountDir, commands }: OciContext): Promise<void> {
  for (const record of records.list()) {
    const { disk } = rootfsPaths(mountDir, containerIdOf(record))
    if (record.is_released || !disks.isReady(record.sandbox_id)) continue
    await commands.callSystem(['thaw', disks.pathOf(record.sandbox_id), disk])
  }
}

/** Returns the container of a running run, or null if the run is not running. */
async function containerOf(context: OciContext, record: OciRunRecord): Promise<Container | null> {
  const { run_id, org_id, started, image, spec } = record
  // The liveness check must not be cached here: the container's root is found by a process id, which may belong to a
  // new process by now.
  const observed = await observeRun({ ...context, isAlive }, record, false)
  if (observed.phase !== 'running' || started === null || started.init === null || image === null) return null
  const { name, command } = started.runtime
  const initPid = started.init.pid
  const containerId = containerIdOf(record)
  // With gVisor or a virtual machine, the host can't enter the root of the sandbox's processes. For these runtimes, use
  // the path at which the host mounted the root.
  const hasHostRoot = name === 'crun' || name === 'runc'
  return {
    id: containerId,
    runtime: command,
    runtimeName: name,
    initPid,
    rootPath: hasHostRoot ? `/proc/${String(initPid)}/root` : rootfsPaths(context.mountDir, containerId).root,
    uidShift: started.uid_shift,
    runDir: context.records.containerFolderOf(run_id),
    pipeDir: context.pipeDir,
    orgId: org_id,
    watchMemory: () => context.memoryKills.watch(run_id),
    commandCgroups: limitCommandsOf(context, record, name),
    spec,
    image,
  }
}
