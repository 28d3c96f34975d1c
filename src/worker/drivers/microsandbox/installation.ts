import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import type { SandboxId } from '../../../domain/ids.ts'
import { errorCodeOf, hasErrorCode } from '../../../lib/error-code.ts'
import { findCaBundle } from '../shared/ca-bundles.ts'
import { findMissingPrograms } from '../shared/machine.ts'

/** The genuine microsandbox runtime that npm installed. */
export type MicrosandboxInstallation = { readonly msb: string; readonly version: string }

const PLATFORM_PACKAGES: Readonly<Partial<Record<string, string>>> = {
  x64: '@superradcompany/microsandbox-linux-x64-gnu',
  arm64: '@superradcompany/microsandbox-linux-arm64-gnu',
}

/** Finds the runtime's program in the npm package for this platform. Returns null if npm did not install that package. */
export function findInstallation(): MicrosandboxInstallation | null {
  const name = PLATFORM_PACKAGES[process.arch]
  if (process.platform !== 'linux' || name === undefined) return null
  try {
    const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`)
    const msb = join(dirname(manifest), 'bin', 'msb')
    const { version } = JSON.parse(readFileSync(manifest, 'utf8')) as { version: string } // the format is npm's
    return existsSync(msb) ? { msb, version } : null
  } catch (error) {
    if (hasErrorCode(error, 'MODULE_NOT_FOUND')) return null
    throw error
  }
}

/** The programs of the host that this driver calls. */
const PROGRAMS = ['mount', 'umount', 'tar', 'nsenter', 'unshare', 'ip', 'nft', 'perl'] as const

/** Lists everything that prevents microVMs from running on this machine. The list is empty if they can run. */
export async function findMissingMicroVmRequirements(): Promise<readonly string[]> {
  if (process.platform !== 'linux') return ['the machine does not run Linux']
  return [
    ...(process.getuid?.() === 0 ? [] : ['the worker is not root']),
    ...(findInstallation() === null ? [`the npm package microsandbox has no program for ${process.arch} here`] : []),
    ...findMissingPrograms(PROGRAMS).map((name) => `the program '${name}' is missing`),
    // Without this file, the runtime (0.6.18) aborts, even if it contacts no registry.
    ...(findCaBundle() === null ? ['the certificates of authorities (ca-certificates) are missing'] : []),
    ...(await findKvmProblems()),
  ]
}

async function findKvmProblems(): Promise<readonly string[]> {
  const missing: string[] = []
  try {
    await (await open('/dev/kvm', 'r+')).close()
  } catch (error) {
    const code = errorCodeOf(error) ?? 'failed'
    missing.push(code === 'ENOENT' ? 'there is no /dev/kvm' : `/dev/kvm does not open (${code})`)
  }
  // On other architectures, only `/dev/kvm` shows whether KVM works.
  if (process.arch === 'x64' && !/^flags\s*:.*\b(?:vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8')))
    missing.push('the processor offers no virtualization (no vmx or svm in /proc/cpuinfo)')
  return missing
}

/** The paths of one sandbox in the runtime's home (0.6.18). The tests compare them with the SDK's. */
export type VmPaths = {
  readonly name: string
  readonly agentSocket: string
  /** The folder that contains the captured output and the guest kernel's log. */
  readonly logs: string
  /** A folder that the guest shares with this machine. The guest's agent writes its heartbeat there. */
  readonly runtime: string
}

/** The folder with a folder for each sandbox, in which the runtime makes its disk. */
export function sandboxesFolder(home: string): string {
  return join(home, 'sandboxes')
}

/**
 * Returns the runtime's name and paths of a sandbox. All runs of the sandbox use one name, because the runtime finds the disk
 * by that name.
 */
export function vmPaths(home: string, sandbox: SandboxId): VmPaths {
  const name = `sy-${sandbox}`
  const hash = createHash('sha256')
    .update(name)
    .digest('hex')
    .slice(0, 2 * SOCKET_HASH_BYTES)
  const folder = join(sandboxesFolder(home), name)
  return {
    name,
    agentSocket: join(home, 'run', 'sandboxes', hash, 'agent.sock'),
    logs: join(folder, 'logs'),
    runtime: join(folder, 'runtime'),
  }
}

const SOCKET_HASH_BYTES = 12
/** The longest path of a socket: the size of `sun_path` (unix(7)) without the terminating zero. */
const SOCKET_PATH_BYTES = 107

/** Throws if the path `home` is too long for the runtime's sockets. */
export function assertHomeShortEnough(home: string): void {
  const longest = join(home, 'run', 'sandboxes', '0'.repeat(2 * SOCKET_HASH_BYTES), 'control.sock')
  const over = Buffer.byteLength(longest) - SOCKET_PATH_BYTES
  if (over > 0)
    throw new Error(
      `the path ${home} is ${String(over)} bytes too long for the sockets of microVMs: use a shorter data folder`,
    )
}

/**
 * Returns the environment of every process of the runtime. It contains no variable of the worker's own environment,
 * because some variables make the runtime use a cloud, other credentials or another home.
 */
export function vmEnvironment(home: string): NodeJS.ProcessEnv {
  return {
    PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
    HOME: home,
    MSB_HOME: home,
    MSB_BACKEND: 'local',
    MSB_CONFIG_PATH: join(home, 'config.json'),
    NO_COLOR: '1',
    LC_ALL: 'C.UTF-8',
  }
}

/** Describes for the operator how sandboxes are isolated. */
export function describeIsolation(version: string): string {
  return `microVM (libkrun by microsandbox ${version}, KVM)`
}
