import { mkdir } from 'node:fs/promises'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { asId, type RunId, type SandboxId } from '../../../../domain/ids.ts'
import type { Image } from '../../../images/image.ts'
import type { SandboxNetwork } from '../../../network/sandbox-network.ts'
import { sendSignal, type ProcessIdentity } from '../../../processes/process-identity.ts'
import { openRunVolumes } from '../../shared/run-volumes.ts'
import type { OciContext } from '../context.ts'
import { assignMounts, mountDisk, mountRoot, rootfsPaths } from '../rootfs/root-mounts.ts'
import { limitCommandsOf, limitDiskOf, limitRun } from '../run/limits/limit-runs.ts'
import { prepareRootfs } from '../run/prepare-rootfs.ts'
import { removeContainer } from '../run/release.ts'
import { startShim } from '../run/runtime/shim.ts'
import { makeWorkloadPipes, workloadPipes } from '../run/workload-pipes.ts'
import type { RunIds } from '../users/sandbox-users.ts'
import type { WarmShape } from './warm-shape.ts'

/** A container of no run. Its first process waits for commands. */
export type WarmSandbox = {
  /** The container's id, which has the form of a run's id. */
  readonly id: RunId
  readonly shape: WarmShape
  readonly image: Image
  readonly ids: RunIds
  readonly network: SandboxNetwork
  readonly facts: Readonly<Record<string, string>>
  readonly shim: ProcessIdentity
  readonly init: ProcessIdentity
}

/**
 * Makes a warm sandbox by the steps of a plain start. Its image must be in the store. Rejects after everything was removed. If the
 * worker is killed, the next one removes everything, because no record names the container.
 */
export async function makeWarmSandbox(
  context: OciContext,
  shape: WarmShape,
  { id, signal }: { readonly id: RunId; readonly signal: AbortSignal },
): Promise<WarmSandbox> {
  const { images, users, runtime, records, forkServers } = context
  const desired = { ...shape.desired, run_id: id, sandbox_id: asId<SandboxId>(id) }
  const { spec, org_id: org } = desired
  const image = await images.resolve(spec.image, { org, policy: spec.pull_policy, auth: null, signal })
  const { range_first, uid_shift } = await users.assign(id, { hasVolumes: false })
  const ids = { range_first, uid_shift }
  let shim: ProcessIdentity | null = null
  try {
    const { processes, ...made } = await startContainer(context, desired, { image, diskMib: shape.diskMib, signal })
    const { init } = processes
    shim = processes.shim
    if (shim === null || init === null) throw new Error('the container ended at once')
    const [commandCgroups, runDir] = [limitCommandsOf(context, desired, runtime.name), records.folderOf(id)]
    await forkServers?.prepare({ id, runtime: runtime.command, runDir, commandCgroups })
    return { id, shape, image, ids, ...made, shim, init }
  } catch (error) {
    await removeWarmSandbox(context, { id, ids, shim })
    throw error
  } finally {
    users.closeNamespaces(id)
  }
}

async function startContainer(
  context: OciContext,
  desired: DesiredRun,
  { image, diskMib, signal }: { readonly image: Image; readonly diskMib: number; readonly signal: AbortSignal },
) {
  const { commands, disks, networks, records, users, runtime, launcher, clock } = context
  const { run_id: id, spec, network_ranges } = desired
  await mkdir(records.folderOf(id), { recursive: true, mode: 0o700 })
  const paths = rootfsPaths(context.mountDir, id)
  const pipes = workloadPipes(records.folderOf(id))
  const path = await disks.makeSpare(id, diskMib)
  await mountDisk(context, paths, path)
  const { uid_shift, mountMapPath } = users.of(id)
  assignMounts(paths, uid_shift)
  await mountRoot(commands, paths, { layers: image.layers, mountMapPath })
  const network = await networks.attach(id, spec.network, network_ranges)
  limitRun(context, desired)
  await limitDiskOf(context, id)
  await makeWorkloadPipes(commands, pipes)
  const { facts, ...prepared } = await prepareRootfs(context, desired, {
    image,
    network,
    disk: { path, isNew: false, sizeMib: diskMib, mountedAs: null },
    paths,
    pipes,
    volumes: openRunVolumes(context.volumes, desired),
    mounts: [],
  })
  signal.throwIfAborted()
  const commandCgroups = (): readonly string[] => []
  const shim = {
    run: id,
    ...prepared,
    commandCgroups,
    rootBase: paths.base,
    pipes,
    runtime,
    launcher,
    records,
    clock,
    signal,
  }
  return { network, facts, processes: await startShim(shim) }
}

/** Removes a warm sandbox that no run took. May be repeated. */
export async function removeWarmSandbox(
  context: OciContext,
  { id, ids, shim }: Pick<WarmSandbox, 'id' | 'ids'> & { readonly shim: ProcessIdentity | null },
): Promise<void> {
  if (shim !== null) sendSignal(-shim.pid, 'SIGKILL') // the shell and the runtime are one process group
  await removeContainer(context, id)
  await context.disks.deleteSpare(id)
  context.users.free(ids)
}
