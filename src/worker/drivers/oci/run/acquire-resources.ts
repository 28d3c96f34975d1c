import { rename } from 'node:fs/promises'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../../domain/ids.ts'
import { once } from '../../../../lib/turns/once.ts'
import { joinSignals } from '../../../../lib/join-signals.ts'
import type { StartPhase } from '../../../../domain/sandboxes/start-phases.ts'
import type { Image } from '../../../images/image.ts'
import type { SandboxNetwork } from '../../../network/sandbox-network.ts'
import { StartError, withStartFailure } from '../../../start-error.ts'
import { egressSecretsOf, diskSizeMib, requireDiskSize, resolveImage } from '../../shared/desired-run.ts'
import { bindByMount, bindIdmapped, pinMounts, type PinnedMount } from '../../shared/pin-mounts.ts'
import type { StartAttempt } from '../../shared/run-supervisor.ts'
import { openRunVolumes, type RunVolumes } from '../../shared/run-volumes.ts'
import type { OciContext } from '../context.ts'
import { makeServedMounts } from './mount-disk-image.ts'
import type { DiskSource } from '../disk/disk-snapshots.ts'
import type { SandboxDisk } from '../disk/sandbox-disks.ts'
import { assignMounts, mountDisk, mountRoot, rootfsPaths, type RootfsPaths } from '../rootfs/root-mounts.ts'
import { makeFolderLimiter } from './limits/limit-folder.ts'
import { limitDiskOf, limitRun } from './limits/limit-runs.ts'
import { makeWorkloadPipes, workloadPipes, type WorkloadPipes } from './workload-pipes.ts'

/** The resources of a run. The root file system is already mounted. */
export type RunResources = {
  readonly image: Image
  readonly network: SandboxNetwork
  readonly disk: SandboxDisk
  readonly paths: RootfsPaths
  readonly pipes: WorkloadPipes
  readonly volumes: RunVolumes
  readonly mounts: readonly PinnedMount[]
}

/**
 * Acquires the image, network, disk, mounts, cgroup and pipes of a run. Resources that don't need each other are
 * acquired at the same time. The first failure cancels the pull of the image. The function rejects with that failure
 * only after all other operations have ended, so that the caller's clean-up doesn't race with them. `resolved` is the image if it
 * is already known.
 */
export async function acquireResources(
  context: OciContext,
  desired: DesiredRun,
  { signal, stopwatch, resolved = null }: StartAttempt & { readonly resolved?: Image | null },
): Promise<RunResources> {
  const abort = new AbortController()
  using joined = joinSignals(signal, abort.signal)
  const either = joined.signal
  const acquire = <T>(phase: StartPhase, work: Promise<T>): Promise<T> =>
    stopwatch.measure(phase, work).catch((error: unknown) => {
      abort.abort(error)
      throw error
    })
  const { run_id, spec } = desired
  const paths = rootfsPaths(context.mountDir, run_id)
  const volumes = openRunVolumes(context.volumes, desired)
  const pipes = workloadPipes(context.records.folderOf(run_id))
  const origin = once(() => findSnapshot(context, desired, either))
  const image =
    resolved === null
      ? acquire('image', resolveRunImage(context, desired, { origin, signal: either }))
      : Promise.resolve(resolved)
  const network = acquire(
    'network',
    withStartFailure(
      'network',
      "the sandbox's network could not be made",
      context.networks.attach(run_id, spec.network, desired.network_ranges, egressSecretsOf(desired)),
    ),
  )
  const disk = acquire('disk', prepareDisk(context, desired, { paths, origin }))
  // The root needs the image and the disk, but not the network.
  const root = acquire('rootfs', mountImageOverDisk(context, { run: run_id, image, disk, paths }))
  // The mounts are pinned in the run's folder, which is created when the disk is prepared.
  const mounts = acquire(
    'mounts',
    disk.then(() => pinRunMounts(context, desired, { volumes, folder: paths.pins, signal: either })),
  )
  const cgroup = acquire(
    'limits',
    withStartFailure('host', "the sandbox's limits could not be set", setLimits(context, desired, disk)),
  )
  const output = acquire(
    'output',
    withStartFailure(
      'host',
      "the sandbox's output could not be made ready",
      makeWorkloadPipes(context.commands, pipes),
    ),
  )
  await Promise.allSettled([image, network, disk, root, mounts, cgroup, output])
  if (abort.signal.aborted) throw abort.signal.reason
  signal.throwIfAborted()
  return {
    image: await image,
    network: await network,
    disk: await disk,
    paths,
    pipes,
    volumes,
    mounts: await mounts,
  }
}

async function setLimits(context: OciContext, desired: DesiredRun, disk: Promise<SandboxDisk>): Promise<void> {
  limitRun(context, desired)
  const isMounted = await disk.then(
    () => true,
    () => false, // the disk's own failure is reported
  )
  if (isMounted) await limitDiskOf(context, desired.run_id)
}

/** Resolves the image of a run: that of its disk, if the sandbox has one or gets a copy of one. */
export async function resolveRunImage(
  context: OciContext,
  desired: DesiredRun,
  { origin, signal }: Pick<DiskParts, 'origin'> & { readonly signal: AbortSignal },
): Promise<Image> {
  const resolve = async (): Promise<Image> => {
    const pinned = (await context.disks.pinnedImageOf(desired.sandbox_id)) ?? (await origin())?.image ?? null
    const log = context.logs.writerOf(desired.sandbox_id)
    return await resolveImage({ images: context.images, log }, desired, { pinned, signal })
  }
  return await withStartFailure('image', 'the image could not be made ready', resolve())
}

type RootParts = {
  readonly run: RunId
  readonly image: Promise<Image>
  readonly disk: Promise<SandboxDisk>
  readonly paths: RootfsPaths
}

async function mountImageOverDisk(
  { commands, users }: OciContext,
  { run, image, disk, paths }: RootParts,
): Promise<void> {
  const [{ layers }] = await Promise.all([image, disk])
  const root = { layers, mountMapPath: users.of(run).mountMapPath }
  await withStartFailure('disk', "the sandbox's file system could not be mounted", mountRoot(commands, paths, root))
}

/** Pins the run's mounts, so that they show the owners of files with the run's own ids. */
async function pinRunMounts(
  context: OciContext,
  desired: DesiredRun,
  { volumes, folder, signal }: { readonly volumes: RunVolumes; readonly folder: string; readonly signal: AbortSignal },
): Promise<readonly PinnedMount[]> {
  const { commands, settings, users } = context
  const { uid_shift, mountMapPath } = users.of(desired.run_id)
  const bind = mountMapPath === null ? bindByMount(commands) : bindIdmapped(commands, mountMapPath)
  const limitFolder = makeFolderLimiter(context.volumes.folderLimits, desired)
  const pins = { folder, owner: uid_shift, bind, limitFolder, ...makeServedMounts(context, desired, signal) }
  return await pinMounts({ volumes, storedShift: settings.uidShift, commands }, desired.spec.mounts, pins)
}

/** What a sandbox's disk is made from: a disk, or an image with all its files under an empty disk. */
type Origin = Pick<DiskSource, 'image'> & { readonly disk: Pick<DiskSource, 'path' | 'takenMib'> | null }

/** Returns the snapshot from which the sandbox's disk is made, or null if it is made empty. Another worker may have it. */
async function findSnapshot(
  { snapshots, fetchSnapshot }: OciContext,
  { spec }: DesiredRun,
  signal: AbortSignal,
): Promise<Origin | null> {
  if (spec.snapshot_id === undefined) return null
  const found = await snapshots.find(spec.snapshot_id)
  if (found !== null) return { image: found.image, disk: found }
  if (fetchSnapshot === undefined)
    throw new StartError('disk', 'the snapshot that the sandbox is made from is not on this worker')
  return { image: { ...(await fetchSnapshot(spec.snapshot_id, signal)), reference: spec.image }, disk: null }
}

type DiskParts = {
  readonly paths: RootfsPaths
  readonly origin: () => Promise<Origin | null>
  /** The name of an empty disk, which is mounted at `paths` already. Absent: the run gets one of its own. */
  readonly spare?: string
}

/** Makes a run's disk ready and mounts it. Rejects with `StartError`. */
export async function prepareDisk(context: OciContext, desired: DesiredRun, parts: DiskParts): Promise<SandboxDisk> {
  return await withStartFailure(
    'disk',
    "the sandbox's disk could not be made ready",
    context.diskLocks.run(desired.sandbox_id, () => prepareLockedDisk(context, desired, parts)),
  )
}

async function prepareLockedDisk(
  context: OciContext,
  desired: DesiredRun,
  { paths, origin, spare }: DiskParts,
): Promise<SandboxDisk> {
  const { disks, records, settings, users } = context
  const { run_id, sandbox_id } = desired
  const holder = disks.holderOf(sandbox_id)
  if (holder !== null && holder !== run_id && records.read(holder) !== null)
    throw new StartError('disk', 'another run of the sandbox still holds its disk')
  const sizeMib = diskSizeMib(desired, settings)
  await settings.diskReserve.requireNotCritical('the sandbox was not started')
  const isReady = disks.isReady(sandbox_id)
  if (!isReady) {
    requireDiskSize(sizeMib, settings)
    await settings.diskReserve.require('the sandbox got no disk')
  }
  const from = isReady ? null : ((await origin())?.disk ?? null)
  if (from !== null && from.takenMib > (await settings.diskReserve.freeMib()))
    throw new StartError('disk', "the worker's disk has no space for a copy of the snapshot; try again later")
  const disk = await disks.prepare(sandbox_id, sizeMib, from?.path ?? null, spare)
  disks.setHolder(sandbox_id, run_id)
  if (spare !== undefined) return disk
  // A pooled disk is mounted already. Renaming its folder moves the mount with it.
  if (disk.mountedAs !== null) await rename(rootfsPaths(context.mountDir, disk.mountedAs).base, paths.base)
  else await mountDisk(context, paths, disk.path)
  assignMounts(paths, users.of(run_id).uid_shift)
  return disk
}
