import { posix } from 'node:path'
import type { Patch, SandboxSpec } from '../../../../domain/spec/spec.ts'
import type { SandboxNetwork } from '../../../network/sandbox-network.ts'
import { withInterpreter } from '../../shared/desired-run.ts'
import { INIT_PATH } from '../environment.ts'
import { SCRIPTS_FOLDER, TOOLS_FOLDER } from '../../../../contract/workers/guest-tools.ts'
import { createFolders, putText, type RootTree } from '../../shared/root-tree.ts'

/** The contents and options for a sandbox's system files. */
type SystemFilesInput = {
  readonly spec: SandboxSpec
  readonly hostname: string
  readonly network: SandboxNetwork
  readonly workdir: string
  /** False if an earlier start has applied the patches. The files that patches wrote then stay unchanged. */
  readonly isFirstStart: boolean
  readonly hasToolbox: boolean
}

/** Writes hostname, hosts, resolv.conf and the spec's scripts, and creates the targets of the driver's mounts. May be repeated. */
export async function writeSystemFiles(tree: RootTree, input: SystemFilesInput): Promise<void> {
  const folders = ['/etc', SCRIPTS_FOLDER, ...(input.hasToolbox ? [TOOLS_FOLDER] : []), input.workdir]
  await Promise.all(folders.map((folder) => createFolders(tree, folder)))
  await Promise.all([putText(tree, INIT_PATH, { mode: 0o755, text: '' }), writeOwnFiles(tree, input)])
}

/**
 * Writes hostname, hosts, resolv.conf and the spec's scripts. Unlike `writeSystemFiles`, it touches no target of a mount, so the
 * container may exist: a mount ends if its target is replaced.
 */
export async function writeOwnFiles(
  tree: RootTree,
  input: Pick<SystemFilesInput, 'spec' | 'hostname' | 'network' | 'isFirstStart'>,
): Promise<void> {
  const { spec } = input
  const patched = patchedPaths(spec.patches, input.isFirstStart)
  const files = [...identityFiles(input)].filter(([path]) => !patched.has(path))
  await Promise.all([
    ...files.map(([path, text]) => putText(tree, path, { mode: 0o644, text })),
    ...Object.entries(spec.runtime.scripts).map(([name, text]) => {
      return putText(tree, posix.join(SCRIPTS_FOLDER, name), {
        mode: 0o755,
        text: withInterpreter(text, spec.runtime.shell),
      })
    }),
  ])
}

/**
 * Creates a file in `/tmp`, so that gVisor keeps `/tmp` on the disk. Over an empty `/tmp`, gVisor mounts a tmpfs. A
 * restart would lose the files in it, and they would not count against the disk's limit (20240729, measured 2026-11).
 * May be repeated.
 */
export async function keepTmpOnDisk(tree: RootTree): Promise<void> {
  await createFolders(tree, '/tmp', 0o1777)
  await putText(tree, '/tmp/.msb', { mode: 0o444, text: '' })
}

function identityFiles({
  hostname,
  network,
}: Pick<SystemFilesInput, 'hostname' | 'network'>): ReadonlyMap<string, string> {
  const own = network.ipv4 ?? '127.0.1.1'
  return new Map([
    ['/etc/hostname', `${hostname}\n`],
    ['/etc/hosts', `127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n${own} ${hostname}\n`],
    ['/etc/resolv.conf', network.resolvers.map((address) => `nameserver ${address}\n`).join('')],
  ])
}

/**
 * Returns the paths of the system files that `writeSystemFiles` must leave to the patches, which replace them. At the
 * first start, a file with an `append` patch is not among them, because the patch appends to the system file.
 */
function patchedPaths(patches: readonly Patch[], isFirstStart: boolean): ReadonlySet<string> {
  const counting = patches.filter((patch) => !(isFirstStart && patch.type === 'append'))
  return new Set(
    counting.map((patch) => posix.normalize('path' in patch ? patch.path : 'dst' in patch ? patch.dst : patch.link)),
  )
}
