import { rename } from 'node:fs/promises'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { Image } from '../../../images/image.ts'
import type { SandboxNetwork } from '../../../network/sandbox-network.ts'
import { StartError, withStartFailure } from '../../../start-error.ts'
import { diskSizeMib, resolveImage } from '../../shared/desired-run.ts'
import { pinMounts, type PinnedMount } from '../../shared/pin-mounts.ts'
import { openRunVolumes, type RunVolumes } from '../../shared/run-volumes.ts'
import type { OciContext } from '../context.ts'
import type { SandboxDisk } from '../disk/sandbox-disks.ts'
import { mountDisk, mountRoot, rootfsPaths, type RootfsPaths } from '../rootfs/root-mounts.ts'
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
 * Acquires the image, network, disk, mounts, cgroup and pipes of a run. Those that don't need each other are acquired at the
 * same time. The first failure cancels the image's pull. The function rejects with that failure only after all other operations
 * have ended, so that the clean-up doesn't race with them.
 */
export async function acquireResources(
  context: OciContext,
  desired: DesiredRun,
  signal: AbortSignal,
): Promise<RunResources> {
  const abort = new AbortController()
  const either = AbortSignal.any([signal, abort.signal])
  const acquire = <T>(work: Promise<T>): Promise<T> =>
    work.catch((error: unknown) => {
      abort.abort(error)
      throw error
    })
  const { run_id, spec } = desired
  const paths = rootfsPaths(context.mountDir, run_id)
  const volumes = openRunVolumes(context.volumes, desired)
  const pipes = workloadPipes(context.records.folderOf(run_id))
  const image = acquire(
    withStartFailure('image', 'the image could not be made ready', resolveRunImage(context, desired, either)),
  )
  const network = acquire(
    withStartFailure(
      'network',
      "the sandbox's network could not be made",
      context.networks.attach(run_id, spec.network),
    ),
  )
  const disk = acquire(prepareDisk(context, desired, paths))
  // The root needs the image and the disk, but not the network.
  const root = acquire(mountImageOverDisk(context, { image, disk, paths }))
  // The disk's preparation creates the run's folder, in which the mounts are pinned.
  const mounts = acquire(disk.then(() => pinMounts(context, desired, { volumes, folder: paths.pins })))
  const cgroup = acquire(
    withStartFailure('host', "the sandbox's limits could not be set", createCgroup(context, desired)),
  )
  const output = acquire(
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

async function resolveRunImage(context: OciContext, desired: DesiredRun, signal: AbortSignal): Promise<Image> {
  const pinned = await context.disks.pinnedImageOf(desired.sandbox_id)
  const log = context.logs.writerOf(desired.sandbox_id)
  return await resolveImage({ images: context.images, log }, desired, { pinned, signal })
}

type RootParts = { readonly image: Promise<Image>; readonly disk: Promise<SandboxDisk>; readonly paths: RootfsPaths }

async function mountImageOverDisk({ commands }: OciContext, { image, disk, paths }: RootParts): Promise<void> {
  const [{ layers }] = await Promise.all([image, disk])
  await withStartFailure('disk', "the sandbox's file system could not be mounted", mountRoot(commands, paths, layers))
}

async function prepareDisk(context: OciContext, desired: DesiredRun, paths: RootfsPaths): Promise<SandboxDisk> {
  const { disks, records, settings } = context
  const { run_id, sandbox_id } = desired
  const holder = await disks.holderOf(sandbox_id)
  if (holder !== null && holder !== run_id && (await records.read(holder)) !== null)
    throw new StartError('disk', 'another run of the sandbox still holds its disk')
  const prepare = async (): Promise<SandboxDisk> => {
    const disk = await disks.prepare(sandbox_id, diskSizeMib(desired, settings.defaultDiskMib))
    await disks.setHolder(sandbox_id, run_id)
    // A pooled disk is mounted already. Renaming its folder moves the mount with it.
    if (disk.mountedAs !== null) await rename(rootfsPaths(context.mountDir, disk.mountedAs).base, paths.base)
    else await mountDisk(context, paths, disk.path)
    return disk
  }
  return await withStartFailure('disk', "the sandbox's disk could not be made ready", prepare())
}

async function createCgroup({ cgroups, settings }: OciContext, { run_id, spec }: DesiredRun): Promise<void> {
  const { memory_mib, vcpus } = spec.resources
  await cgroups.create(run_id, { memoryBytes: memory_mib * 1024 * 1024, vcpus, pids: settings.pidsLimit })
}
