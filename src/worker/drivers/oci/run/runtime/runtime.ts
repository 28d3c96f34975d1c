import { constants } from 'node:fs'
import { access, readFile } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import type { IsolationLevel } from '../../../../../domain/isolation.ts'
import { runCommand } from '../../../../../lib/run-command.ts'
import { findGvisorPlatform, inMountNamespace } from './gvisor.ts'

/** The names of runtimes, the strongest isolation first: virtual machines, then a kernel in user space, then containers. */
export const RUNTIME_NAMES = ['kata-runtime', 'runsc', 'crun', 'runc'] as const
export type RuntimeName = (typeof RUNTIME_NAMES)[number]

/** An OCI runtime that is installed on this machine. */
export type Runtime = {
  readonly name: RuntimeName
  /** Name and version, such as `crun 1.8.1`. */
  readonly version: string
  /** The command line up to the subcommand, including wrappers and global options. */
  readonly command: readonly string[]
  /** Describes what separates a sandbox from the machine. */
  readonly isolation: string
  readonly level: IsolationLevel
}

type RuntimeSearch = {
  /** The runtime to use. Null for the strongest usable one. */
  readonly name: RuntimeName | null
  /** The folders to search, in the format of PATH. */
  readonly searchPath: string
  /** The folder of the runtime's own state, which the runtime creates. */
  readonly stateDir: string
  /** The static init program of the host, which trials of gVisor run. */
  readonly initBinary: string
}

/**
 * The chosen runtime. `unusable` says, for each runtime with stronger isolation that is installed but unusable, why.
 */
export type FoundRuntime = Runtime & { readonly unusable: readonly string[] }

/**
 * Finds the first usable runtime in the order of `RUNTIME_NAMES`. Rejects when no runtime is usable. The error message
 * tells the reasons.
 */
export async function findRuntime(choice: RuntimeSearch): Promise<FoundRuntime> {
  const names = choice.name === null ? RUNTIME_NAMES : [choice.name]
  const flaws: string[] = []
  for (const name of names) {
    const binary = await findBinary(name, choice.searchPath)
    if (binary === null) continue
    const { stdout } = await runCommand(binary, ['--version'], { timeoutMs: COMMAND_TIMEOUT_MS })
    const number = /\d[\w.+~-]*/.exec(stdout)?.[0] ?? 'unknown'
    const flaw = flawOf(name, number) ?? (await findMissingRight(name))
    if (flaw !== null) {
      flaws.push(`${name} ${number} ${flaw}`)
      continue
    }
    const version = `${name} ${number}`
    if (name === 'runsc') {
      const fit = await findGvisorPlatform({ binary, stateDir: choice.stateDir, initBinary: choice.initBinary })
      if ('flaw' in fit) {
        flaws.push(`${version} ${fit.flaw}`)
        continue
      }
      const isolation = `${version} on ${fit.platform}, ${ISOLATION[name]}`
      return { name, version, command: fit.command, isolation, level: LEVELS[name], unusable: flaws }
    }
    const command = [...(await wrapperFor(name)), binary, ...globalOptions(name, choice.stateDir)]
    return { name, version, command, isolation: `${version}, ${ISOLATION[name]}`, level: LEVELS[name], unusable: flaws }
  }
  throw new Error(
    [`no OCI runtime can be used: looked for ${names.join(', ')} in ${choice.searchPath}`, ...flaws].join('; '),
  )
}

const COMMAND_TIMEOUT_MS = 10_000

const ISOLATION: Record<RuntimeName, string> = {
  'kata-runtime': 'virtual machine per sandbox',
  runsc: 'gVisor kernel of its own in a user namespace',
  crun: 'container: user namespace, seccomp, few capabilities',
  runc: 'container: user namespace, seccomp, few capabilities',
}

const LEVELS: Record<RuntimeName, IsolationLevel> = {
  'kata-runtime': 'microvm',
  runsc: 'gvisor',
  crun: 'container',
  runc: 'container',
}

/**
 * Whether a runtime can join an existing user namespace. gVisor can't: it is written in Go, and the kernel refuses such a change
 * to a process with threads (setns(2)). It shows sandboxes its own inotify, signals and message queues, not the host's.
 */
export function joinsUserNamespaces(name: RuntimeName): boolean {
  return name === 'crun' || name === 'runc'
}

async function findBinary(name: string, searchPath: string): Promise<string | null> {
  for (const folder of searchPath.split(delimiter).filter((part) => part !== '')) {
    const path = join(folder, name)
    if (await isExecutable(path)) return path
  }
  return null
}

async function isExecutable(path: string): Promise<boolean> {
  return await access(path, constants.X_OK).then(
    () => true,
    () => false,
  )
}

/** The oldest release of gVisor with which the tests pass. The release of 2022-12 has no terminals (tried 2026-11). */
const FIRST_USABLE_RUNSC = 20240729

/** Describes why an installed runtime can't be used. Returns null if it can. */
function flawOf(name: RuntimeName, version: string): string | null {
  if (name === 'kata-runtime' && !/^[01]\./.test(version))
    return 'has no OCI command line (from version 2 on it is a containerd shim)'
  // These versions enter the user namespace before the network namespace, so the kernel refuses the latter (1.1.5,
  // 2026-11).
  if (name === 'runc' && /^(0|1\.[01])\./.test(version))
    return "can't run commands in a sandbox's own network: 1.2 is needed"
  const release = Number(/\d{8}/.exec(version)?.[0] ?? Infinity)
  if (name === 'runsc' && release < FIRST_USABLE_RUNSC) return 'is too old: release 20240729 or a later one is needed'
  return null
}

/**
 * Describes which right of root an installed runtime lacks. runc sets the limits of a sandbox's processes from outside of their
 * user namespace, for which prlimit(2) needs CAP_SYS_RESOURCE. In a container, root often lacks it.
 */
async function findMissingRight(name: RuntimeName): Promise<string | null> {
  if (name !== 'runc') return null
  const rights = /^CapEff:\s*([0-9a-f]+)$/m.exec(await readFile('/proc/self/status', 'utf8'))?.[1] ?? '0'
  const hasRight = (BigInt(`0x${rights}`) >> CAP_SYS_RESOURCE) % 2n === 1n
  return hasRight ? null : "needs CAP_SYS_RESOURCE, which this machine's root lacks, to set limits"
}

const CAP_SYS_RESOURCE = 24n // linux/capability.h

function globalOptions(name: Exclude<RuntimeName, 'runsc'>, stateDir: string): readonly string[] {
  const root = ['--root', join(stateDir, name)]
  switch (name) {
    case 'crun':
      return ['--cgroup-manager=cgroupfs', ...root]
    case 'runc':
    case 'kata-runtime':
      return root
  }
}

/**
 * If the runtime would refuse the machine's mounts, returns a command prefix that runs each call of it in a mount
 * namespace with other mounts. This namespace is a slave of the machine's, so later unmounts on the machine also happen
 * in it.
 */
async function wrapperFor(name: RuntimeName): Promise<readonly string[]> {
  if (name === 'crun' && (await hasHybridCgroups()))
    return inMountNamespace('umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"')
  return []
}

/** Whether the machine has both cgroup versions and v2 has controllers. crun refuses such a machine. */
async function hasHybridCgroups(): Promise<boolean> {
  return await readFile('/sys/fs/cgroup/unified/cgroup.controllers', 'utf8').then(
    (controllers) => controllers.trim() !== '',
    () => false,
  )
}

/**
 * Prepares a runtime's message for a sandbox's owner: replaces these absolute folders of the worker by `…`. The root `/`
 * can't be hidden.
 */
export function hideHostFolders(message: string, folders: readonly string[]): string {
  return folders.filter((folder) => folder !== '/').reduce((text, folder) => text.replaceAll(folder, '…'), message)
}
