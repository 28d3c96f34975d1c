import type { StartFailure, WantedRun } from '../../../contract/worker-protocol.ts'
import type { TmpfsMount } from '../../../domain/spec.ts'
import type { Image } from '../../images/image.ts'
import type { SandboxNetwork } from '../../network/sandbox-network.ts'
import { StartError } from '../driver.ts'
import { makeBundle } from './bundle.ts'
import type { OciContext } from './context.ts'
import type { Disk } from './disk.ts'
import { sandboxEnvironment, workloadOf } from './environment.ts'
import { openPorts } from './netns.ts'
import { applyPatches } from './patches.ts'
import { endWith } from './release.ts'
import { clampRlimits } from './rlimits.ts'
import { resolveInRoot } from './root-path.ts'
import { InTheWay, makeFolders, type RootTree } from './root-tree.ts'
import { mountDisk, mountRoot, rootfsPaths, type RootfsPaths } from './rootfs.ts'
import type { RunRecord } from './run-records.ts'
import { launchShim } from './shim.ts'
import { isScriptName, writeSystemFiles } from './system-files.ts'
import { readUserFiles, resolveUser } from './users.ts'

/**
 * Starts a run that has no record yet. Rejects with `StartError`; by then nothing of the run is left but its record,
 * ended with that failure.
 */
export async function startRun(context: OciContext, wanted: WantedRun, signal: AbortSignal): Promise<void> {
  const record: RunRecord = {
    version: 1,
    run_id: wanted.run_id,
    sandbox_id: wanted.sandbox_id,
    org_id: wanted.org_id,
    boot_id: context.bootId,
    spec: wanted.spec,
    image: null,
    facts: {},
    started: null,
    is_stop_requested: false,
    outcome: null,
    is_released: false,
  }
  await context.records.write(record)
  try {
    refuseUnusable(wanted)
    await bringUp(context, wanted, { record, signal })
  } catch (error) {
    const failure = signal.aborted
      ? new StartError('cancelled', 'the start was cancelled', error)
      : asStartError('host', error)
    context.log.warn({ run_id: wanted.run_id, reason: failure.reason, err: failure }, 'start failed')
    await endWith(context, record, { kind: 'start_failed', reason: failure.reason, message: failure.message })
    throw failure
  }
}

type Attempt = { readonly record: RunRecord; readonly signal: AbortSignal }
type Parts = {
  readonly image: Image
  readonly network: SandboxNetwork
  readonly disk: Disk
  readonly paths: RootfsPaths
}

async function bringUp(context: OciContext, wanted: WantedRun, { record, signal }: Attempt): Promise<void> {
  const watch = makeStopwatch(context)
  const parts = await gather(context, wanted, signal)
  watch.lap('parts')
  await failAs('disk', "the sandbox's file system could not be mounted", mountRoot(parts.paths, parts.image.layers))
  watch.lap('root')
  const { bundle, facts } = await furnish(context, wanted, parts)
  watch.lap('files')
  signal.throwIfAborted()
  const { uidShift } = context.settings
  const shimInput = { run: wanted.run_id, bundle, log: parts.paths.log, uidShift, signal }
  const { shim, init } = await launchShim({
    ...shimInput,
    runtime: context.runtime,
    records: context.records,
    clock: context.clock,
  })
  watch.lap('runtime')
  const started = { uid_shift: uidShift, runtime: context.runtime, shim, init }
  await context.records.write({ ...record, image: parts.image.config, facts, started })
  context.log.debug({ run_id: wanted.run_id, ...watch.laps() }, 'started')
}

/** Image, network and disk don't need each other: they are made at the same time. One that fails ends the others. */
async function gather(context: OciContext, wanted: WantedRun, signal: AbortSignal): Promise<Parts> {
  const abort = new AbortController()
  const either = AbortSignal.any([signal, abort.signal])
  const { spec } = wanted
  const paths = rootfsPaths(context.mountDir, wanted.run_id)
  const endOthers = (error: unknown): never => {
    abort.abort(error)
    throw error
  }
  const work = {
    image: failAs(
      'image',
      'the image could not be made ready',
      context.images.resolve(spec.image, { policy: spec.pull_policy, auth: wanted.registry_auth, signal: either }),
    ).catch(endOthers),
    network: failAs('network', "the sandbox's network could not be made", attachNetwork(context, wanted)).catch(
      endOthers,
    ),
    disk: makeDisk(context, wanted, paths).catch(endOthers),
    cgroup: failAs('host', "the sandbox's limits could not be set", makeCgroup(context, wanted)).catch(endOthers),
  }
  // All of them have come to rest before the first failure is passed on: cleaning up must not race with them.
  await Promise.allSettled(Object.values(work))
  if (abort.signal.aborted) throw abort.signal.reason
  signal.throwIfAborted()
  return { image: await work.image, network: await work.network, disk: await work.disk, paths }
}

async function attachNetwork(context: OciContext, { run_id, spec }: WantedRun): Promise<SandboxNetwork> {
  const network = await context.networks.attach(run_id, spec.network)
  await openPorts(network.netnsPath)
  return network
}

async function makeDisk(context: OciContext, wanted: WantedRun, paths: RootfsPaths): Promise<Disk> {
  const { disks } = context
  const holder = await disks.holderOf(wanted.sandbox_id)
  if (holder !== null && holder !== wanted.run_id)
    throw new StartError('disk', 'another run of the sandbox still holds its disk')
  const prepare = async (): Promise<Disk> => {
    const disk = await disks.prepare(wanted.sandbox_id, wanted.spec.resources.disk_size_mib)
    await disks.hold(wanted.sandbox_id, wanted.run_id)
    await mountDisk(paths, disk.path, context.settings.uidShift)
    return disk
  }
  return await failAs('disk', "the sandbox's disk could not be made ready", prepare())
}

async function makeCgroup(context: OciContext, { run_id, spec }: WantedRun): Promise<void> {
  const { memory_mib, vcpus } = spec.resources
  await context.cgroups.create(run_id, {
    memoryBytes: memory_mib * 1024 * 1024,
    vcpus,
    pids: context.settings.pidsLimit,
  })
}

type Furnished = { readonly bundle: object; readonly facts: Readonly<Record<string, string>> }

/** Fills the root file system and derives the container's configuration from it. */
async function furnish(
  context: OciContext,
  wanted: WantedRun,
  { image, network, disk, paths }: Parts,
): Promise<Furnished> {
  const { spec } = wanted
  const { settings, runtime } = context
  const tree: RootTree = { root: paths.root, owner: settings.uidShift }
  const hostname = spec.runtime.hostname ?? wanted.slug
  const workdir = spec.runtime.workdir ?? image.config.workdir ?? '/'
  const files = { spec, hostname, network, workdir, isFirstStart: disk.isNew }
  await failAs('config', "the sandbox's files could not be written", writeSystemFiles(tree, files))
  if (disk.isNew) {
    await applyPatches(tree, spec.patches, context.hostVolumePath(wanted.org_id))
    await context.disks.markReady(wanted.sandbox_id)
  }
  const tmpfs = await resolveTmpfs(
    tree,
    spec.mounts.filter((mount) => mount.type === 'tmpfs'),
  )
  const user = resolveUser(spec.runtime.user ?? image.config.user, await readUserFiles(paths.root))
  const workload = workloadOf(spec, image.config)
  // Without a workload the user matters to later commands only, and each of them says so itself.
  if (typeof user === 'string' && workload !== null) throw new StartError('config', user)
  const known = typeof user === 'string' ? { uid: 0, gid: 0, additionalGids: [], home: '/root' } : user
  const { rlimits, clamped } = clampRlimits(spec.rlimits, context.hardLimits)
  const bundle = makeBundle({
    spec,
    hostname,
    rootPath: paths.root,
    uidShift: settings.uidShift,
    netnsPath: network.netnsPath,
    cgroupsPath: context.cgroups.runtimePath(wanted.run_id),
    initBinary: settings.initBinary,
    workload,
    user: known,
    env: sandboxEnvironment(spec, image.config, known.home),
    workdir,
    rlimits,
    tmpfs,
    architecture: process.arch,
  })
  const facts = { image_digest: image.digest, isolation: runtime.isolation, disk_size_mib: String(disk.sizeMib) }
  return { bundle, facts: clamped.length === 0 ? facts : { ...facts, clamped_rlimits: clamped.join(', ') } }
}

/** Makes each target and names it as it is behind all symlinks, so that the runtime meets none. */
async function resolveTmpfs(tree: RootTree, mounts: readonly TmpfsMount[]): Promise<readonly TmpfsMount[]> {
  const resolved: TmpfsMount[] = []
  for (const mount of mounts) {
    const make = async (): Promise<string> => {
      const { guestPath } = await resolveInRoot(tree.root, mount.guest)
      if (guestPath === '/' || (isSystemPath(guestPath) && guestPath !== '/dev/shm'))
        throw new InTheWay(`'${mount.guest}' is the system's own`)
      await makeFolders(tree, guestPath)
      return guestPath
    }
    resolved.push({ ...mount, guest: await failAs('mount', `'${mount.guest}' can't be mounted on`, make()) })
  }
  return resolved
}

function isSystemPath(guestPath: string): boolean {
  return ['/proc', '/sys', '/dev', '/.msb'].some((path) => guestPath === path || guestPath.startsWith(`${path}/`))
}

function refuseUnusable({ spec }: WantedRun): void {
  const name = Object.keys(spec.runtime.scripts).find((candidate) => !isScriptName(candidate))
  if (name !== undefined) throw new StartError('config', `'${name}' is not usable as the name of a script`)
}

/** Gives a failure its kind; its own text goes to the log as cause, unless it was written for the sandbox's owner. */
async function failAs<T>(reason: StartFailure, message: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof InTheWay) throw new StartError(reason, error.message, error)
    throw error instanceof StartError ? error : new StartError(reason, message, error)
  }
}

function asStartError(reason: StartFailure, error: unknown): StartError {
  return error instanceof StartError ? error : new StartError(reason, 'the worker could not start the sandbox', error)
}

type Stopwatch = { lap(name: string): void; laps(): Readonly<Record<string, number>> }

/** Milliseconds of each step, for the log. */
function makeStopwatch({ clock }: OciContext): Stopwatch {
  const laps: Record<string, number> = {}
  let lastMs = clock.monotonicMs()
  return {
    lap(name) {
      const nowMs = clock.monotonicMs()
      laps[`${name}_ms`] = Math.round((nowMs - lastMs) * 10) / 10
      lastMs = nowMs
    },
    laps: () => laps,
  }
}
