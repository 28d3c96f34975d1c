import { posix } from 'node:path'
import type { HandoffInit, SandboxSpec } from '../../../../../domain/spec/spec.ts'
import type { ImageConfig } from '../../../../images/image.ts'
import { StartError } from '../../../../start-error.ts'
import { workloadCommand } from '../../../shared/desired-run.ts'
import { resolveInRoot } from '../../../shared/resolve-in-root.ts'
import { sandboxEnvironment } from '../../environment.ts'
import { halfOf } from './bundle.ts'
import { joinsUserNamespaces, type RuntimeName } from './runtime.ts'
import { describeProgramFlaw } from '../../rootfs/check-program.ts'
import type { ResolvedMount } from '../../rootfs/resolve-mounts.ts'
import { ROOT_USER } from '../../rootfs/users.ts'

/** How the image's own init becomes process 1 of a container. */
export type HandoffProcess = {
  readonly args: readonly string[]
  readonly env: readonly string[]
  /** The mounts that an init expects, in OCI form. */
  readonly mounts: readonly object[]
}

/** The programs that `auto` looks for, the first one first. */
const AUTO_PATHS: readonly string[] = ['/sbin/init', '/lib/systemd/systemd', '/usr/lib/systemd/systemd']
/** The programs with which `auto` takes the image's entrypoint as the init. */
const INIT_ENTRYPOINTS: readonly string[] = ['/init', ...AUTO_PATHS]

type InitRoot = Parameters<typeof describeProgramFlaw>[0]

type HandoffInput = {
  readonly spec: SandboxSpec
  readonly image: ImageConfig
  readonly mounts: readonly ResolvedMount[]
  readonly runtime: RuntimeName
}

/** Returns the process for the spec's init, or null if the spec has none. Rejects with `StartError`. */
export async function prepareHandoff(
  root: InitRoot,
  { spec, image, mounts, runtime }: HandoffInput,
): Promise<HandoffProcess | null> {
  const { init } = spec
  if (init === null) return null
  requireVisible(spec)
  const args = await findCommand(root, init, entrypointAsInit(spec, image))
  const hasCgroups = joinsUserNamespaces(runtime)
  if (!hasCgroups && (await isSystemd(root, args[0] ?? '')))
    throw new StartError(
      'config',
      `init: systemd can't run with ${runtime}, which gives it no cgroups; accepted: another init, or a worker with crun or runc`,
    )
  return {
    args,
    env: overlay(sandboxEnvironment(spec, image, ROOT_USER.home), [['container', 'oci'], ...init.env]),
    mounts: [...volatileMounts(mounts, spec), ...(hasCgroups ? [CGROUP_MOUNT] : [])],
  }
}

/** Returns the entrypoint if it is the init that `auto` means. Empty otherwise. */
function entrypointAsInit({ init, runtime }: SandboxSpec, image: ImageConfig): readonly string[] {
  const entrypoint = runtime.entrypoint ?? image.entrypoint ?? []
  return init?.cmd === 'auto' && INIT_ENTRYPOINTS.includes(entrypoint[0] ?? '') ? entrypoint : []
}

/** Returns the workload's command line, like `workloadCommand`, but without an entrypoint that is the init. */
export function workloadBeside(spec: SandboxSpec, image: ImageConfig): readonly string[] | null {
  const command = workloadCommand(spec, image)
  const taken = entrypointAsInit(spec, image).length
  return command === null || command.length === taken ? null : command.slice(taken)
}

async function findCommand(root: InitRoot, init: HandoffInit, taken: readonly string[]): Promise<readonly string[]> {
  const paths = taken[0] !== undefined ? [taken[0]] : init.cmd === 'auto' ? AUTO_PATHS : [init.cmd]
  const flaws: string[] = []
  for (const cmd of paths) {
    const flaw = await describeProgramFlaw(root, { cmd, cwd: '/', path: '', user: ROOT_USER })
    if (flaw === null) return [cmd, ...taken.slice(1), ...init.args]
    flaws.push(flaw)
  }
  throw new StartError('config', `the init can't be started: ${flaws.join('; ')}`)
}

async function isSystemd(root: InitRoot, path: string): Promise<boolean> {
  const { guestPath } = await resolveInRoot(root.path, path)
  return posix.basename(guestPath) === 'systemd'
}

/** Returns the environment with other variables, of which the last one of a name wins. */
function overlay(env: readonly string[], others: readonly (readonly [string, string])[]): readonly string[] {
  const variables = new Map(env.map((item) => [item.slice(0, item.indexOf('=')), item.slice(item.indexOf('=') + 1)]))
  for (const [key, value] of others) variables.set(key, value)
  return [...variables].map(([key, value]) => `${key}=${value}`)
}

/**
 * The folders that must be empty when systemd starts, because it can't mount them (systemd.io, "The Container Interface"). Other
 * inits clear them, or expect them to be cleared.
 */
const VOLATILE_FOLDERS = [
  { path: '/run', mode: '755' },
  { path: '/run/lock', mode: '1777' },
  { path: '/tmp', mode: '1777' },
] as const

function volatileMounts(mounts: readonly ResolvedMount[], { resources }: SandboxSpec): readonly object[] {
  const isTaken = (path: string): boolean => mounts.some(({ guest }) => path === guest || path.startsWith(`${guest}/`))
  return VOLATILE_FOLDERS.filter(({ path }) => !isTaken(path)).map(({ path, mode }) => ({
    destination: path,
    type: 'tmpfs',
    source: 'tmpfs',
    options: ['nosuid', 'nodev', `mode=${mode}`, `size=${halfOf(resources.memory_mib)}m`],
  }))
}

/** The root of this mount is the container's own cgroup, because the container has a cgroup namespace. */
const CGROUP_MOUNT = {
  destination: '/sys/fs/cgroup',
  type: 'cgroup2',
  source: 'cgroup2',
  options: ['nosuid', 'noexec', 'nodev'],
}

/** Throws `StartError` if the spec puts a file or its working folder where the init gets an empty folder. */
function requireVisible(spec: SandboxSpec): void {
  const paths = [
    ...spec.patches.map((patch, index) => ({
      field: `patches[${String(index)}]`,
      path: 'path' in patch ? patch.path : 'dst' in patch ? patch.dst : patch.link,
    })),
    ...(spec.runtime.workdir === null ? [] : [{ field: 'runtime.workdir', path: spec.runtime.workdir }]),
  ]
  for (const { field, path } of paths) {
    const folder = VOLATILE_FOLDERS.find((one) => posix.normalize(path).startsWith(`${one.path}/`))?.path
    if (folder === undefined || spec.mounts.some(({ guest }) => posix.normalize(guest) === folder)) continue
    throw new StartError(
      'config',
      `${field}: '${path}' is in ${folder}, which is empty when an init starts; accepted: a path in another folder`,
    )
  }
}
