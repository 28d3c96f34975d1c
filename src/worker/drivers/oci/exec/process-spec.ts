import { readFileSync } from 'node:fs'
import { constants } from 'node:os'
import { join, posix } from 'node:path'
import type { RlimitResource } from '../../../../domain/spec/spec.ts'
import { RLIMIT_RESOURCES } from '../../../../domain/spec/spec.ts'
import { ExecFailure } from '../../../channel/guest.ts'
import type { GuestExec } from '../../../channel/guest.ts'
import type { Container } from '../container.ts'
import { sandboxEnvironment } from '../environment.ts'
import { SCRIPTS_FOLDER, toolCommand, TOOLS_FOLDER } from '../../../../contract/workers/guest-tools.ts'
import { checkWorkdir, checkProgram } from '../rootfs/check-program.ts'
import { parseHardLimits, sandboxHardLimits } from '../users/rlimits.ts'
import type { HardLimits } from '../users/rlimits.ts'
import { readUserFiles, resolveUser } from '../rootfs/users.ts'

/** The settings that every process of a container inherits from the configuration of the container's first process. */
export type ProcessDefaults = {
  /** Fields of the first process that are used unchanged, such as `capabilities` and `noNewPrivileges`. */
  readonly shared: Readonly<Record<string, unknown>>
  /** The capabilities of a process of user 0. */
  readonly capabilities: ReadonlySet<string>
  readonly rlimits: readonly OciRlimit[]
  /** The mount points in the container. */
  readonly mountPoints: readonly string[]
  /** The file of the container's network namespace, if it is one of the host's. */
  readonly netnsPath: string | null
}

type OciRlimit = { readonly type: string; readonly soft: number; readonly hard: number }

/** The argument of `runtime exec --process` (OCI runtime specification, `process`). */
export type ProcessSpec = Readonly<Record<string, unknown>> & {
  readonly terminal: boolean
  readonly user: { readonly uid: number; readonly gid: number; readonly additionalGids: readonly number[] }
  readonly args: readonly string[]
  readonly env: readonly string[]
  readonly cwd: string
  readonly rlimits: readonly OciRlimit[]
}

/** Reads the defaults from the container's bundle in `runDir`, on this thread: the worker wrote the small file itself. */
export function readProcessDefaults(runDir: string): ProcessDefaults {
  const config = asObject(JSON.parse(readFileSync(join(runDir, 'config.json'), 'utf8')))
  const { capabilities, noNewPrivileges, apparmorProfile, selinuxLabel, oomScoreAdj, rlimits } = asObject(
    config['process'],
  )
  return {
    shared: { capabilities, noNewPrivileges, apparmorProfile, selinuxLabel, oomScoreAdj },
    capabilities: new Set(asTexts(asObject(capabilities)['effective'])),
    rlimits: Array.isArray(rlimits) ? rlimits.flatMap(asRlimit) : [],
    mountPoints: Array.isArray(config['mounts']) ? config['mounts'].flatMap(asMountPoint) : [],
    netnsPath: netnsPathOf(asObject(config['linux'])),
  }
}

/** A process to start. */
export type CheckedProcess = {
  readonly spec: ProcessSpec
  /** Rejects with `ExecFailure` if its program or folder can't be used: a runtime refuses them without telling the reason. */
  readonly check: () => Promise<void>
}

type ProcessInput = {
  readonly base: ProcessDefaults
  readonly request: GuestExec
  /** Whether no process of the container's owner has run in it. Nothing of its root can block then. */
  readonly isUnused: boolean
}

/** Makes a requested process, with the sandbox's defaults. Rejects with `ExecFailure` if its user or limits can't be used. */
export async function makeProcess(
  container: Container,
  { base, request, isUnused }: ProcessInput,
): Promise<CheckedProcess> {
  const isSeen = hasOwnRoot(container)
  const root = {
    path: container.rootPath,
    uidShift: container.uidShift,
    hiddenMountPoints: isSeen ? [] : base.mountPoints,
  }
  const { runtime } = container.spec
  const cwd = posix.resolve('/', request.cwd ?? runtime.workdir ?? container.image.workdir ?? '/')
  const wantedUser = [request.user, runtime.user, container.image.user].find((user) => user !== null && user !== '')
  const user = resolveUser(wantedUser ?? null, await readUserFiles({ root: root.path, isFresh: isUnused }))
  if (typeof user === 'string') throw new ExecFailure('user_setup_failed', user, { ...EINVAL, stage: 'setuid' })
  const env = makeEnv(container, request, user.home)
  const rlimits = mergeRlimits(container, base, request)
  const spec = {
    ...base.shared,
    terminal: request.tty !== null,
    ...(request.tty === null ? {} : { consoleSize: { height: request.tty.rows, width: request.tty.cols } }),
    user: { uid: user.uid, gid: user.gid, additionalGids: user.additionalGids },
    args: [request.cmd.includes('/') ? posix.resolve(cwd, request.cmd) : request.cmd, ...request.args],
    env: [...env].map(([key, value]) => `${key}=${value}`),
    cwd,
    rlimits,
  }
  const check = async (): Promise<void> => {
    await checkWorkdir(root, cwd, user)
    await checkProgram(root, { cmd: request.cmd, cwd, path: env.get('PATH') ?? '', user })
  }
  return { spec, check }
}

/**
 * The limit of open files for a program of the toolbox, unless the machine's limit is lower. Each handle of a client is
 * an open file.
 */
const TOOL_OPEN_FILES = 4096

/**
 * Creates the spec of a program of the toolbox. It runs as user 0 with the sandbox's capabilities, without the workload's
 * environment and limits. Returns null if the toolbox is not mounted in this container.
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

/**
 * Creates the spec of a container's fork server. It inherits its limits from the worker, as a process without limits of its own
 * does. Returns null if the toolbox is not mounted in this container.
 */
export function makeForkServerSpec(base: ProcessDefaults): ProcessSpec | null {
  const spec = makeToolProcessSpec(base, toolCommand('fork-server.pl', [process.arch]))
  return spec === null ? null : { ...spec, rlimits: [] }
}

/** Whether the host sees the container's root as the container's processes see it, with all its mounts. */
function hasOwnRoot({ runtimeName }: Container): boolean {
  return runtimeName === 'crun' || runtimeName === 'runc'
}

/**
 * Returns the environment of a requested process. The request's variables override the sandbox's. HOME is the home of
 * the process's user unless the spec or the request sets HOME. The folder of scripts comes first on PATH, unless the
 * request's own PATH already contains that folder.
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

/**
 * Returns the limits of a requested process. The request's limits override the container's. A limit that can't be set fails the
 * start.
 */
function mergeRlimits(container: Container, base: ProcessDefaults, request: GuestExec): readonly OciRlimit[] {
  const limits = new Map(base.rlimits.map((limit) => [limit.type, limit]))
  const ceilings = request.rlimits.length === 0 ? {} : readCeilings(container)
  for (const { resource, soft, hard } of request.rlimits) {
    if (!isRlimitResource(resource)) continue
    const type = `RLIMIT_${resource.toUpperCase()}`
    // gVisor silently gives every command the limits of the sandbox's first process (20240729, tried 2026-11).
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

/** The bit of CAP_SYS_RESOURCE in a capability mask (linux/capability.h). */
const CAP_SYS_RESOURCE = 1n << 24n

/**
 * Returns the hard limits of this worker, which processes inherit and can't exceed. The result is empty if the
 * container's processes can raise their hard limits. In a user namespace they can't, because raising a hard limit needs
 * CAP_SYS_RESOURCE on the host (setrlimit(2)).
 */
function readCeilings(container: Container): HardLimits {
  const mask = /^CapEff:\s*([0-9a-f]+)/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '0'
  if (container.uidShift === 0 && (BigInt(`0x${mask}`) & CAP_SYS_RESOURCE) !== 0n) return {}
  return sandboxHardLimits(parseHardLimits(readFileSync('/proc/self/limits', 'utf8')))
}

const RESOURCES: ReadonlySet<string> = new Set(RLIMIT_RESOURCES)

function isRlimitResource(name: string): name is RlimitResource {
  return RESOURCES.has(name)
}

function asRlimit(value: unknown): readonly OciRlimit[] {
  const { type, soft, hard } = asObject(value)
  return typeof type === 'string' && typeof soft === 'number' && typeof hard === 'number' ? [{ type, soft, hard }] : []
}

function asTexts(value: unknown): readonly string[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === 'string') : []
}

function asMountPoint(value: unknown): readonly string[] {
  const { destination } = asObject(value)
  return typeof destination === 'string' ? [destination] : []
}

function netnsPathOf({ namespaces }: Readonly<Record<string, unknown>>): string | null {
  const found = (Array.isArray(namespaces) ? namespaces : []).map(asObject).find(({ type }) => type === 'network')
  return typeof found?.['path'] === 'string' ? found['path'] : null
}

function asObject(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? { ...value } : {}
}
