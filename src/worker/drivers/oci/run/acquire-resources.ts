import { rename } from 'node:fs/promises'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { Image } from '../../../images/image.ts'
import { LIFECYCLE_LINES } from '../../../logs/lifecycle-lines.ts'
import type { SandboxNetwork } from '../../../network/sandbox-network.ts'
import { StartError, withStartFailure } from '../../../start-error.ts'
import type { OciContext } from '../context.ts'
import type { SandboxDisk } from '../disk/disk.ts'
import { pinMounts, type PinnedMount } from '../../shared/pin-mounts.ts'
import { mountDisk, mountRoot, rootfsPaths, type RootfsPaths } from '../../shared/rootfs.ts'
import { openRunVolumes, type RunVolumes } from '../../shared/run-volumes.ts'
import { makeWorkloadPipes, workloadPipes, type WorkloadPipes } from './workload-pipes.ts'

/** What a sandbox is put together from; its root is mounted. */
export type RunResources = {
  readonly image: Image
  readonly network: SandboxNetwork
  readonly disk: SandboxDisk
  readonly paths: RootfsPaths
  readonly pipes: WorkloadPipes
  readonly volumes: RunVolumes
  readonly mounts: readonly PinnedMount[]
}

/** Image, network and disk don't need each other: they are made at the same time. One that fails ends the pull. */
export async function acquireResources(
  context: OciContext,
  wanted: DesiredRun,
  signal: AbortSignal,
): Promise<RunResources> {
  const abort = new AbortController()
  const either = AbortSignal.any([signal, abort.signal])
  const { spec } = wanted
  const paths = rootfsPaths(context.mountDir, wanted.run_id)
  const endOthers = (error: unknown): never => {
    abort.abort(error)
    throw error
  }
  const image = withStartFailure(
    'image',
    'the image could not be made ready',
    resolveImage(context, wanted, either),
  ).catch(endOthers)
  const network = withStartFailure(
    'network',
    "the sandbox's network could not be made",
    context.networks.attach(wanted.run_id, spec.network),
  ).catch(endOthers)
  const disk = makeDisk(context, wanted, paths).catch(endOthers)
  const root = makeRoot(context, { image, disk, paths }).catch(endOthers)
  const volumes = openRunVolumes(context.volumes, wanted)
  // A run's folder comes into being with its disk.
  const mounts = disk.then(() => pinMounts(context, wanted, { volumes, paths })).catch(endOthers)
  const cgroup = withStartFailure('host', "the sandbox's limits could not be set", makeCgroup(context, wanted)).catch(
    endOthers,
  )
  const pipes = workloadPipes(context.records.folderOf(wanted.run_id))
  const output = withStartFailure(
    'host',
    "the sandbox's output could not be made ready",
    makeWorkloadPipes(context.commands, pipes),
  ).catch(endOthers)
  // All of them have come to rest before the first failure is passed on: cleaning up must not race with them.
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

/** A sandbox that has started before keeps its image; another is resolved. */
async function resolveImage(context: OciContext, wanted: DesiredRun, signal: AbortSignal): Promise<Image> {
  const { image, pull_policy } = wanted.spec
  let how: 'pulled' | 'stored' = 'stored'
  const onFetched = (): void => {
    how = 'pulled'
  }
  const options = { policy: pull_policy, auth: wanted.registry_auth, signal, onFetched }
  const found = (await context.disks.pinnedImageOf(wanted.sandbox_id)) ?? (await context.images.resolve(image, options))
  context.logs.writerOf(wanted.sandbox_id).system(LIFECYCLE_LINES.image(found.reference, found.digest, how))
  return found
}

type RootParts = { readonly image: Promise<Image>; readonly disk: Promise<SandboxDisk>; readonly paths: RootfsPaths }

/** The root needs the image and the disk, and does not wait for the network. */
async function makeRoot({ commands }: OciContext, { image, disk, paths }: RootParts): Promise<void> {
  const [{ layers }] = await Promise.all([image, disk])
  await withStartFailure('disk', "the sandbox's file system could not be mounted", mountRoot(commands, paths, layers))
}

async function makeDisk(context: OciContext, wanted: DesiredRun, paths: RootfsPaths): Promise<SandboxDisk> {
  const { disks } = context
  const holder = await disks.holderOf(wanted.sandbox_id)
  if (holder !== null && holder !== wanted.run_id && (await context.records.read(holder)) !== null)
    throw new StartError('disk', 'another run of the sandbox still holds its disk')
  const prepare = async (): Promise<SandboxDisk> => {
    const disk = await disks.prepare(wanted.sandbox_id, diskSizeMib(context, wanted))
    await disks.setHolder(wanted.sandbox_id, wanted.run_id)
    // A folder moves with what is mounted in it: the disk that was mounted ahead is the run's from here on.
    if (disk.mountedAs !== null) await rename(rootfsPaths(context.mountDir, disk.mountedAs).base, paths.base)
    else await mountDisk(context, paths, disk.path)
    return disk
  }
  return await withStartFailure('disk', "the sandbox's disk could not be made ready", prepare())
}

function diskSizeMib({ settings }: OciContext, { spec, default_disk_max_mib }: DesiredRun): number {
  return spec.resources.disk_size_mib ?? Math.min(settings.defaultDiskMib, default_disk_max_mib ?? Infinity)
}

async function makeCgroup(context: OciContext, { run_id, spec }: DesiredRun): Promise<void> {
  const { memory_mib, vcpus } = spec.resources
  await context.cgroups.create(run_id, {
    memoryBytes: memory_mib * 1024 * 1024,
    vcpus,
    pids: context.settings.pidsLimit,
  })
}
