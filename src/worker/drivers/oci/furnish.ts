import type { WantedRun } from '../../../contract/worker-protocol.ts'
import type { TmpfsMount } from '../../../domain/spec.ts'
import { StartError } from '../driver.ts'
import { makeBundle } from './bundle.ts'
import type { OciContext } from './context.ts'
import { sandboxEnvironment, workloadOf } from './environment.ts'
import type { Parts } from './gather.ts'
import { applyPatches } from './patches.ts'
import { clampRlimits } from './rlimits.ts'
import { resolveInRoot } from './root-path.ts'
import { InTheWay, makeFolders, type RootTree } from './root-tree.ts'
import { failAs } from './start-failure.ts'
import { keepTmpOnDisk, writeSystemFiles } from './system-files.ts'
import { readUserFiles, resolveUser } from './users.ts'

/** A container's configuration, and what is worth telling about the sandbox. */
export type Furnished = { readonly bundle: object; readonly facts: Readonly<Record<string, string>> }

/** Fills the root file system and derives the container's configuration from it. */
export async function furnish(
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
    await context.disks.markReady(wanted.sandbox_id, image)
  }
  if (runtime.name === 'runsc') await failAs('config', "the folder '/tmp' could not be made", keepTmpOnDisk(tree))
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
