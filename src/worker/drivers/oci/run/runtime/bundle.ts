import type { Resources, Rlimit, SandboxSpec } from '../../../../../domain/spec/spec.ts'
import { SANDBOX_IDS } from '../../../../../domain/workers/id-range.ts'
import { processCapabilities } from './capabilities.ts'
import type { HandoffProcess } from './handoff-init.ts'
import { INIT_PATH } from '../../environment.ts'
import { TOOLS_FOLDER } from '../../../../../contract/workers/guest-tools.ts'
import type { ResolvedMount } from '../../rootfs/resolve-mounts.ts'
import { mountFlagsOf } from '../../../shared/pin-mounts.ts'
import { seccompProfile } from './seccomp.ts'
import { ROOT_USER, type SandboxUser } from '../../rootfs/users.ts'

/** The input for a container's configuration. */
type BundleInput = {
  readonly spec: SandboxSpec
  readonly hostname: string
  /** The merged root file system on the host. */
  readonly rootPath: string
  /** The folder with the sandbox's own device nodes. Null if the runtime creates the nodes in a kernel of its own. */
  readonly devicesPath: string | null
  /** The id of the host user that is user 0 in the sandbox. */
  readonly uidShift: number
  /** The user namespace to join. Null if the runtime creates one with the sandbox's ids. */
  readonly userNamespacePath: string | null
  /**
   * Whether the configuration has the namespace's maps. Without them, crun doesn't give the workload its standard input. runc
   * reads the maps of a namespace that it joins, and warns of an error if it finds them twice.
   */
  readonly namesMappings: boolean
  readonly netnsPath: string
  readonly cgroupsPath: string
  /** The path of the static init program on the host. */
  readonly initBinary: string
  /** The folder of the worker's own programs for sandboxes. Null if the worker has none. */
  readonly toolbox: string | null
  /** The workload's command line, which runs beside `init` if both exist. Null if the sandbox only waits for commands. */
  readonly workload: readonly string[] | null
  /** The image's own init, which becomes process 1 as user 0. Null: the worker's init is process 1. */
  readonly init: HandoffProcess | null
  readonly user: SandboxUser
  readonly env: readonly string[]
  readonly workdir: string
  readonly rlimits: readonly Rlimit[]
  /** The mounts of the spec, in mount order. */
  readonly mounts: readonly ResolvedMount[]
  readonly architecture: NodeJS.Architecture
}

/** Creates the `config.json` of a sandbox, by the OCI runtime specification 1.0.2. */
export function makeBundle(input: BundleInput): object {
  const mapping = [{ containerID: 0, hostID: input.uidShift, size: SANDBOX_IDS }]
  const path = input.userNamespacePath
  return {
    ociVersion: '1.0.2',
    process: makeFirstProcess(input),
    root: { path: input.rootPath, readonly: false },
    hostname: input.hostname,
    mounts: [...systemMounts(input), ...input.mounts.map((mount) => asBundleMount(mount, input.spec.resources))],
    linux: {
      cgroupsPath: input.cgroupsPath,
      // The parent cgroup has the limits, so only access to devices is configured here. The runtime itself allows
      // `/dev/null`, `/dev/zero` and similar devices.
      resources: { devices: [{ allow: false, access: 'rwm' }] },
      ...(input.namesMappings ? { uidMappings: mapping, gidMappings: mapping } : {}),
      namespaces: [
        ...['pid', 'mount', 'ipc', 'uts', 'cgroup'].map((type) => ({ type })),
        path === null ? { type: 'user' } : { type: 'user', path },
        { type: 'network', path: input.netnsPath },
      ],
      seccomp: seccompProfile(input.architecture),
      maskedPaths: MASKED_PATHS,
      readonlyPaths: READONLY_PATHS,
    },
  }
}

/** Creates the workload's process, which the runtime executes once the image's own init runs. Null without both. */
export function makeProcessBesideInit(input: BundleInput): object | null {
  return input.init === null || input.workload === null ? null : makeWorkload(input, input.workload)
}

/** The first process of the container. */
function makeFirstProcess(input: BundleInput): object {
  const { init, workload, env } = input
  if (init !== null) return makeProcess(input, { user: ROOT_USER, args: init.args, env: init.env, cwd: '/' })
  // The worker's init runs as the workload's user. Without a workload, it runs as user 0 and only reaps processes.
  if (workload === null) return makeProcess(input, { user: ROOT_USER, args: [INIT_PATH, '-P'], env, cwd: '/' })
  return makeWorkload(input, [INIT_PATH, '--', ...workload])
}

function makeWorkload(input: BundleInput, args: readonly string[]): object {
  const { user, env, workdir: cwd } = input
  return makeProcess(input, { user, args, env, cwd })
}

type ProcessInput = {
  readonly user: SandboxUser
  readonly args: readonly string[]
  readonly env: readonly string[]
  readonly cwd: string
}

function makeProcess({ spec, rlimits }: BundleInput, { user, ...own }: ProcessInput): object {
  return {
    terminal: false,
    user: { uid: user.uid, gid: user.gid, additionalGids: user.additionalGids },
    ...own,
    capabilities: processCapabilities(spec.security_profile),
    rlimits: rlimits.map(({ resource, soft, hard }) => ({
      type: `RLIMIT_${resource.toUpperCase()}`,
      soft,
      hard,
    })),
    noNewPrivileges: spec.security_profile === 'restricted',
    // If the machine itself runs out of memory, the kernel kills sandboxes before the worker.
    oomScoreAdj: 500,
  }
}

function systemMounts(input: BundleInput): readonly object[] {
  const shm = input.mounts.some((mount) => mount.guest === '/dev/shm')
    ? []
    : [shmMount(input.spec.resources.memory_mib)]
  return [
    { destination: '/proc', type: 'proc', source: 'proc', options: ['nosuid', 'noexec', 'nodev'] },
    devicesMount(input.devicesPath),
    {
      destination: '/dev/pts',
      type: 'devpts',
      source: 'devpts',
      options: ['nosuid', 'noexec', 'newinstance', 'ptmxmode=0666', 'mode=0620', 'gid=5', `max=${String(TERMINALS)}`],
    },
    ...shm,
    { destination: '/dev/mqueue', type: 'mqueue', source: 'mqueue', options: ['nosuid', 'noexec', 'nodev'] },
    // sysfs can't be mounted, because the network namespace was created outside the user namespace. A bind mount of the host's
    // /sys would show the host's devices and cgroups.
    {
      destination: '/sys',
      type: 'tmpfs',
      source: 'tmpfs',
      options: ['nosuid', 'noexec', 'nodev', 'ro', 'mode=555', 'size=4k'],
    },
    ...(input.init?.mounts ?? []),
    bindOwn(INIT_PATH, input.initBinary),
    ...(input.toolbox === null ? [] : [bindOwn(TOOLS_FOLDER, input.toolbox)]),
  ]
}

/**
 * Returns the mount of `/dev`. In a user namespace, crun and runc would bind the host's own device nodes into a `/dev` that they
 * create. They add no nodes to a `/dev` that is a bind mount.
 */
function devicesMount(devicesPath: string | null): object {
  if (devicesPath !== null)
    return { destination: '/dev', type: 'bind', source: devicesPath, options: ['bind', 'nosuid'] }
  const options = ['nosuid', 'strictatime', 'mode=755', 'size=64k']
  return { destination: '/dev', type: 'tmpfs', source: 'tmpfs', options }
}

/** The most terminals of a sandbox. All sandboxes together have the machine's 3,072 (`kernel.pty.max` less its reserve). */
const TERMINALS = 64

/** Returns a readonly bind mount of a file or folder of the worker. */
function bindOwn(destination: string, source: string): object {
  return { destination, type: 'bind', source, options: ['bind', 'ro', 'nosuid', 'nodev'] }
}

function shmMount(memoryMib: number): object {
  return {
    destination: '/dev/shm',
    type: 'tmpfs',
    source: 'shm',
    options: ['nosuid', 'noexec', 'nodev', 'mode=1777', `size=${halfOf(memoryMib)}m`],
  }
}

function asBundleMount({ guest, spec, pin }: ResolvedMount, { memory_mib }: Resources): object {
  if (spec.type !== 'tmpfs')
    return { destination: guest, type: 'bind', source: pin, options: ['bind', ...mountFlagsOf(spec.options)] }
  const { readonly, noexec, nosuid, nodev } = spec.options
  const flags = [
    readonly ? 'ro' : 'rw',
    noexec ? 'noexec' : 'exec',
    nosuid ? 'nosuid' : 'suid',
    nodev ? 'nodev' : 'dev',
  ]
  const size = spec.size_mib === null ? halfOf(memory_mib) : String(spec.size_mib)
  return { destination: guest, type: 'tmpfs', source: 'tmpfs', options: [...flags, 'mode=1777', `size=${size}m`] }
}

/** Returns the size in MiB of a file system in memory for which the spec asks no size. */
export function halfOf(memoryMib: number): string {
  return String(Math.max(1, Math.floor(memoryMib / 2)))
}

/** Paths in `/proc` that sandboxes can't read, because they reveal facts about the machine or its kernel's memory. */
const MASKED_PATHS: readonly string[] = [
  'acpi',
  'asound',
  'config.gz',
  'interrupts',
  'kallsyms',
  'kcore',
  'key-users',
  'keys',
  'kmsg',
  'latency_stats',
  'modules',
  'sched_debug',
  'scsi',
  'slabinfo',
  'timer_list',
  'timer_stats',
  'vmallocinfo',
  'pagetypeinfo',
  'zoneinfo',
  'driver',
].map((name) => `/proc/${name}`)

/** Paths that are readonly, because a write would change the machine. */
const READONLY_PATHS: readonly string[] = ['bus', 'fs', 'irq', 'sys', 'sysrq-trigger', 'mtrr'].map(
  (name) => `/proc/${name}`,
)
