import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { ISOLATION_LEVEL_FACT } from '../../../../domain/isolation.ts'
import { hostPortsFact } from '../../../../domain/workers/publishing.ts'
import { StartError, withStartFailure } from '../../../start-error.ts'
import { makeBundle, makeProcessBesideInit } from './runtime/bundle.ts'
import type { OciContext } from '../context.ts'
import { INIT_PATH, sandboxEnvironment } from '../environment.ts'
import { TOOLS_FOLDER } from '../../../../contract/workers/guest-tools.ts'
import type { RunResources } from './acquire-resources.ts'
import { describeProgramFlaw } from '../rootfs/check-program.ts'
import { makeFolderInMounts, resolveMounts, type ResolvedMount } from '../rootfs/resolve-mounts.ts'
import { applyPatches } from '../../shared/patches.ts'
import { givenCertificates, trustCertificates } from '../../shared/trust-certificates.ts'
import { clampRlimits, withDefaultRlimits } from '../users/rlimits.ts'
import type { RootTree } from '../../shared/root-tree.ts'
import { describeIsolation } from './runtime/probe.ts'
import { joinsUserNamespaces } from './runtime/runtime.ts'
import { keepTmpOnDisk, writeSystemFiles } from '../rootfs/system-files.ts'
import { initOf } from '../rootfs/toolbox.ts'
import { prepareHandoff, workloadBeside } from './runtime/handoff-init.ts'
import { readUserFiles, resolveUser, ROOT_USER, type SandboxUser } from '../rootfs/users.ts'
import { chownWorkloadPipes } from './workload-pipes.ts'

/** A container's configuration, and facts about the sandbox for its log. */
type PreparedRootfs = {
  readonly bundle: object
  /** The workload's process if the image's own init is the first one. */
  readonly processBesideInit: object | null
  /** The `cgroup.procs` files of the cgroups in which the container starts. */
  readonly cgroups: readonly string[]
  readonly facts: Readonly<Record<string, string>>
}

/**
 * Writes the sandbox's files into its mounted root, resolves its mounts, and derives the container's configuration.
 * Patches are applied at the sandbox's first start only. Rejects with `StartError`.
 */
export async function prepareRootfs(
  context: OciContext,
  desired: DesiredRun,
  { image, network, disk, paths, pipes, volumes, mounts: pinned }: RunResources,
): Promise<PreparedRootfs> {
  const { spec } = desired
  const { settings, runtime, hardLimits } = context
  const { uid_shift, namespacePath } = context.users.of(desired.run_id)
  const tree: RootTree = { root: paths.root, owner: uid_shift, isFresh: true }
  const hostname = spec.runtime.hostname ?? desired.slug
  const workdir = spec.runtime.workdir ?? image.config.workdir ?? '/'
  const files = { spec, hostname, network, workdir, isFirstStart: disk.isNew, hasToolbox: context.toolbox !== null }
  await withStartFailure('config', "the sandbox's files could not be written", writeSystemFiles(tree, files))
  if (disk.isNew) {
    await volumes.using(() => applyPatches(tree, spec.patches, volumes))
    context.disks.markReady(desired.sandbox_id, image)
  }
  const trusting = trustGiven(tree, desired)
  await withStartFailure('config', 'the certificates of authorities could not be written', trusting)
  if (runtime.name === 'runsc')
    await withStartFailure('config', "the folder '/tmp' could not be made", keepTmpOnDisk(tree))
  const mounts = await resolveMounts(tree, pinned)
  const workdirInMounts = makeFolderInMounts(tree, workdir, mounts)
  await withStartFailure('config', `the working folder '${workdir}' could not be made`, workdirInMounts)
  const user = resolveUser(
    spec.runtime.user ?? image.config.user,
    await readUserFiles({ root: paths.root, isFresh: true }),
  )
  const workload = workloadBeside(spec, image.config)
  // Without a workload, an unknown user is no error here: only later commands run as that user, and each of them
  // reports the error itself.
  if (typeof user === 'string' && workload !== null) throw new StartError('config', user)
  const known = typeof user === 'string' ? ROOT_USER : user
  const env = sandboxEnvironment(spec, image.config, known.home)
  if (workload !== null)
    await requireProgram({ paths, uidShift: uid_shift, mounts }, { workload, cwd: workdir, env, user: known })
  const init = await prepareHandoff(
    { path: paths.root, uidShift: uid_shift, hiddenMountPoints: hiddenBelow(mounts), isFresh: true },
    { spec, image: image.config, mounts, runtime: runtime.name },
  )
  const cgroups =
    init === null || !joinsUserNamespaces(runtime.name)
      ? []
      : await context.cgroups.createForInit(desired.run_id, uid_shift)
  await chownWorkloadPipes(pipes, uid_shift + (init !== null && workload === null ? ROOT_USER.uid : known.uid))
  const { rlimits, clamped } = clampRlimits(spec.rlimits, hardLimits)
  const configuration = {
    spec,
    hostname,
    rootPath: paths.root,
    devicesPath: runtime.name === 'crun' || runtime.name === 'runc' ? paths.devices : null,
    uidShift: uid_shift,
    userNamespacePath: namespacePath,
    namesMappings: namespacePath === null || runtime.name !== 'runc',
    netnsPath: network.netnsPath,
    cgroupsPath: context.cgroups.runtimePath(desired.run_id),
    initBinary: context.toolbox === null ? settings.initBinary : initOf(context.toolbox),
    toolbox: context.toolbox,
    workload,
    init,
    user: known,
    env,
    workdir,
    rlimits: withDefaultRlimits(rlimits, hardLimits),
    mounts,
    architecture: process.arch,
  }
  const facts = {
    image_digest: image.digest,
    isolation: describeIsolation(context),
    [ISOLATION_LEVEL_FACT]: runtime.level,
    disk_size_mib: String(disk.sizeMib),
    ...hostPortsFact(network.published),
  }
  return {
    bundle: makeBundle(configuration),
    processBesideInit: makeProcessBesideInit(configuration),
    cgroups,
    facts: clamped.length === 0 ? facts : { ...facts, clamped_rlimits: clamped.join(', ') },
  }
}

/** Where the runtime mounts file systems that the host doesn't see in the sandbox's root. */
const HIDDEN_MOUNT_POINTS: readonly string[] = ['/proc', '/dev', '/sys', INIT_PATH, TOOLS_FOLDER]

function hiddenBelow(mounts: readonly ResolvedMount[]): readonly string[] {
  return [...HIDDEN_MOUNT_POINTS, ...mounts.map(({ guest }) => guest)]
}

type WorkloadRoot = {
  readonly paths: RunResources['paths']
  readonly uidShift: number
  readonly mounts: readonly ResolvedMount[]
}
type Workload = {
  readonly workload: readonly string[]
  readonly cwd: string
  readonly env: readonly string[]
  readonly user: SandboxUser
}

/** Rejects with `StartError` if the workload's program can't be executed. Without this check, its init ends with code 127. */
async function requireProgram({ paths, uidShift, mounts }: WorkloadRoot, workload: Workload): Promise<void> {
  const { cwd, env, user } = workload
  const hiddenMountPoints = hiddenBelow(mounts)
  const root = { path: paths.root, uidShift, hiddenMountPoints, isFresh: true }
  const path = env.find((item) => item.startsWith('PATH='))?.slice('PATH='.length) ?? ''
  const [cmd = ''] = workload.workload
  const flaw = await withStartFailure(
    'config',
    `the program '${cmd}' could not be checked`,
    describeProgramFlaw(root, { cmd, cwd, path, user }),
  )
  if (flaw !== null) throw new StartError('config', flaw)
}

/** Makes programs trust the authorities of this machine and that of intercepted connections, where the run has them. */
async function trustGiven(tree: RootTree, desired: DesiredRun): Promise<void> {
  const certificates = await givenCertificates(desired)
  if (certificates !== '') await trustCertificates(tree, certificates)
}
