import { readFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { constants } from 'node:os'
import { join, posix } from 'node:path'
import type { RlimitResource } from '../../../../domain/spec/spec.ts'
import { RLIMIT_RESOURCES } from '../../../../domain/spec/spec.ts'
import { ExecFailure } from '../../../channel/guest.ts'
import type { GuestExec } from '../../../channel/guest.ts'
import type { Container } from '../container.ts'
import { sandboxEnvironment, SCRIPTS_FOLDER, TOOLS_FOLDER } from '../environment.ts'
import { checkWorkdir, checkProgram } from './check-program.ts'
import { parseHardLimits } from '../run/rlimits.ts'
import type { HardLimits } from '../run/rlimits.ts'
import { readUserFiles, resolveUser } from '../rootfs/users.ts'

/** The part of a runtime's process description that every process of a container shares with its first one. */
export type ProcessDefaults = {
  /** `capabilities`, `noNewPrivileges` and what else the container's own process was given. */
  readonly shared: Readonly<Record<string, unknown>>
  readonly rlimits: readonly OciRlimit[]
  /** Where something is mounted over the container's root. */
  readonly mountPoints: readonly string[]
}

type OciRlimit = { readonly type: string; readonly soft: number; readonly hard: number }

/** A process description as `runtime exec --process` wants it (OCI runtime specification, `process`). */
export type ProcessSpec = Readonly<Record<string, unknown>>

/** Reads from a container's bundle what its processes have in common; the bundle lies in `runDir`. */
export async function readProcessDefaults(runDir: string): Promise<ProcessDefaults> {
  const config = asObject(JSON.parse(await readFile(join(runDir, 'config.json'), 'utf8')))
  const { capabilities, noNewPrivileges, apparmorProfile, selinuxLabel, oomScoreAdj, rlimits } = asObject(
    config['process'],
  )
  return {
    shared: { capabilities, noNewPrivileges, apparmorProfile, selinuxLabel, oomScoreAdj },
    rlimits: Array.isArray(rlimits) ? rlimits.flatMap(asRlimit) : [],
    mountPoints: Array.isArray(config['mounts']) ? config['mounts'].flatMap(asMountPoint) : [],
  }
}

/**
 * Turns a request into a process description, with the sandbox's defaults filled in and everything checked that a
 * runtime would refuse without saying what it was. Rejects with `ExecFailure`.
 */
export async function makeProcessSpec(
  container: Container,
  base: ProcessDefaults,
  request: GuestExec,
): Promise<ProcessSpec> {
  const isSeen = hasOwnRoot(container)
  const root = {
    path: container.rootPath,
    uidShift: container.uidShift,
    hiddenMountPoints: isSeen ? [] : base.mountPoints,
  }
  const { runtime } = container.spec
  const cwd = posix.resolve('/', request.cwd ?? runtime.workdir ?? container.image.workdir ?? '/')
  const wantedUser = [request.user, runtime.user, container.image.user].find((user) => user !== null && user !== '')
  const user = resolveUser(wantedUser ?? null, await readUserFiles({ root: root.path, isFresh: false }))
  if (typeof user === 'string') throw new ExecFailure('user_setup_failed', user, { ...EINVAL, stage: 'setuid' })
  const env = makeEnv(container, request, user.home)
  const rlimits = mergeRlimits(container, base, request)
  await checkWorkdir(root, cwd, user)
  await checkProgram(root, { cmd: request.cmd, cwd, path: env.get('PATH') ?? '', user })
  return {
    ...base.shared,
    terminal: request.tty !== null,
    ...(request.tty === null ? {} : { consoleSize: { height: request.tty.rows, width: request.tty.cols } }),
    user: { uid: user.uid, gid: user.gid, additionalGids: user.additionalGids },
    args: [request.cmd.includes('/') ? posix.resolve(cwd, request.cmd) : request.cmd, ...request.args],
    env: [...env].map(([key, value]) => `${key}=${value}`),
    cwd,
    rlimits,
  }
}

/** Open files that a program of ours may have, where the machine lets it: each handle of a client is one. */
const TOOL_OPEN_FILES = 4096

/**
 * The process description of a program of the toolbox: user 0 with all that this may in the sandbox, and nothing of the
 * workload's own environment and limits. Null when the toolbox is not mounted in this container.
 */
export function makeToolProcessSpec(base: ProcessDefaults, command: readonly string[]): ProcessSpec | null {
  if (!base.mountPoints.includes(TOOLS_FOLDER)) return null
  const hard = parseHardLimits(readFileSync('/proc/self/limits', 'utf8')).nofile ?? TOOL_OPEN_FILES
  return {
    ...base.shared,
    terminal: false,
    user: { uid: 0, gid: 0, additionalGids: [] },
    args: command,
    env: ['LC_ALL=C'],
    cwd: '/',
    rlimits: [{ type: 'RLIMIT_NOFILE', soft: Math.min(hard, TOOL_OPEN_FILES), hard }],
  }
}

/** Whether the host sees the container's root as its processes do, mounts included. */
function hasOwnRoot({ runtimeName }: Container): boolean {
  return runtimeName === 'crun' || runtimeName === 'runc'
}

/**
 * The sandbox's own environment with the request's over it. HOME is that of the process's user unless the sandbox's
 * spec or the request sets it, and the scripts come first on any PATH (agent protocol 7.2).
 */
function makeEnv(container: Container, request: GuestExec, home: string): ReadonlyMap<string, string> {
  const env = new Map<string, string>()
  const put = (item: string): void => {
    const at = item.indexOf('=')
    if (at > 0) env.set(item.slice(0, at), item.slice(at + 1))
  }
  for (const item of sandboxEnvironment(container.spec, container.image, home)) put(item)
  if (!container.spec.env.some((variable) => variable.key === 'HOME')) env.set('HOME', home)
  for (const item of request.env) put(item)
  const path = env.get('PATH') ?? ''
  if (!path.split(':').includes(SCRIPTS_FOLDER)) env.set('PATH', `${SCRIPTS_FOLDER}:${path}`)
  return env
}

/** The container's limits with the request's over them. A limit that can't be had fails the start, as setrlimit would. */
function mergeRlimits(container: Container, base: ProcessDefaults, request: GuestExec): readonly OciRlimit[] {
  const limits = new Map(base.rlimits.map((limit) => [limit.type, limit]))
  const ceilings = request.rlimits.length === 0 ? {} : readCeilings(container)
  for (const { resource, soft, hard } of request.rlimits) {
    if (!isRlimitResource(resource)) continue
    const type = `RLIMIT_${resource.toUpperCase()}`
    // gVisor gives every command the limits of the sandbox's first process, and says nothing (20240729, tried 2026-11).
    if (container.runtimeName === 'runsc') throw refusedLimit(type, 'ENOSYS')
    if (soft > hard) throw refusedLimit(type, 'EINVAL')
    if (hard > (ceilings[resource] ?? Infinity)) throw refusedLimit(type, 'EPERM')
    limits.set(type, { type, soft, hard })
  }
  return [...limits.values()]
}

const EINVAL = { errno: constants.errno.EINVAL, errnoName: 'EINVAL' } as const

function refusedLimit(type: string, code: 'EINVAL' | 'EPERM' | 'ENOSYS'): ExecFailure {
  const errno = constants.errno[code]
  const message = `setrlimit ${type}: ${code} (os error ${String(errno)})`
  return new ExecFailure('resource_limit', message, { errno, errnoName: code, stage: 'setrlimit' })
}

/** Bit of CAP_SYS_RESOURCE in a capability mask (linux/capability.h). */
const CAP_SYS_RESOURCE = 1n << 24n

/**
 * The hard limits above which this worker, from which processes inherit theirs, can't raise one; none when it can. In a
 * user namespace nobody can: the right to raise limits is one of the host's (setrlimit(2)).
 */
function readCeilings(container: Container): HardLimits {
  const mask = /^CapEff:\s*([0-9a-f]+)/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0'
  if (container.uidShift === 0 && (BigInt(`0x${mask}`) & CAP_SYS_RESOURCE) !== 0n) return {}
  return parseHardLimits(readFileSync('/proc/self/limits', 'utf8'))
}

const RESOURCES: ReadonlySet<string> = new Set(RLIMIT_RESOURCES)

function isRlimitResource(name: string): name is RlimitResource {
  return RESOURCES.has(name)
}

function asRlimit(value: unknown): readonly OciRlimit[] {
  const { type, soft, hard } = asObject(value)
  return typeof type === 'string' && typeof soft === 'number' && typeof hard === 'number' ? [{ type, soft, hard }] : []
}

function asMountPoint(value: unknown): readonly string[] {
  const { destination } = asObject(value)
  return typeof destination === 'string' ? [destination] : []
}

function asObject(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? { ...value } : {}
}
