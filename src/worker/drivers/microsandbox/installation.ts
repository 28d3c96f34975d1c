import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import type { SandboxId } from '../../../domain/ids.ts'
import { findMissingPrograms } from '../shared/machine.ts'

/** The genuine microsandbox runtime, as npm installed it. */
export type MicrosandboxInstallation = { readonly msb: string; readonly version: string }

const PLATFORM_PACKAGES: Readonly<Partial<Record<string, string>>> = {
  x64: '@superradcompany/microsandbox-linux-x64-gnu',
  arm64: '@superradcompany/microsandbox-linux-arm64-gnu',
}

/** Finds the runtime's program in the npm package of this platform; null when npm did not install it. */
export function findInstallation(): MicrosandboxInstallation | null {
  const name = PLATFORM_PACKAGES[process.arch]
  if (process.platform !== 'linux' || name === undefined) return null
  try {
    const manifest = createRequire(import.meta.url).resolve(`${name}/package.json`)
    const msb = join(dirname(manifest), 'bin', 'msb')
    const { version } = JSON.parse(readFileSync(manifest, 'utf8')) as { version: string } // npm's own format
    return existsSync(msb) ? { msb, version } : null
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'MODULE_NOT_FOUND') return null
    throw error
  }
}

/** The programs of the host that this driver calls. */
const PROGRAMS = ['mount', 'umount', 'tar'] as const

/**
 * Where distributions store the certificates of authorities. The runtime (0.6.18) aborts without them, even when it needs
 * no registry.
 */
const CERTIFICATES = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/etc/ssl/ca-bundle.pem',
  '/etc/ssl/cert.pem',
] as const

/** Describes everything that keeps microVMs from running on this machine; empty when nothing does. */
export async function findMissingMicroVmRequirements(): Promise<readonly string[]> {
  if (process.platform !== 'linux') return ['the machine does not run Linux']
  return [
    ...(process.getuid?.() === 0 ? [] : ['the worker is not root']),
    ...(findInstallation() === null ? [`the npm package microsandbox has no program for ${process.arch} here`] : []),
    ...findMissingPrograms(PROGRAMS).map((name) => `the program '${name}' is missing`),
    ...(CERTIFICATES.some((path) => existsSync(path))
      ? []
      : ['the certificates of authorities (ca-certificates) are missing']),
    ...(await findKvmProblems()),
  ]
}

async function findKvmProblems(): Promise<readonly string[]> {
  const lacks: string[] = []
  try {
    await (await open('/dev/kvm', 'r+')).close()
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'failed'
    lacks.push(code === 'ENOENT' ? 'there is no /dev/kvm' : `/dev/kvm does not open (${code})`)
  }
  // On other architectures, nothing but the device shows whether KVM works.
  if (process.arch === 'x64' && !/^flags\s*:.*\b(?:vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8')))
    lacks.push('the processor offers no virtualization (no vmx or svm in /proc/cpuinfo)')
  return lacks
}

/** The runtime's paths of one sandbox, beneath its home (0.6.18; the tests compare them with the SDK's). */
export type VmPaths = {
  readonly name: string
  readonly agentSocket: string
  /** The folder of captured output and of the guest kernel's log. */
  readonly logs: string
  /** A folder that the guest shares. Its agent writes a heartbeat there. */
  readonly runtime: string
}

/** The runtime's name and paths of a sandbox. All runs share one name, because the runtime ties the disk to it. */
export function vmPaths(home: string, sandbox: SandboxId): VmPaths {
  const name = `sy-${sandbox}`
  const hash = createHash('sha256')
    .update(name)
    .digest('hex')
    .slice(0, 2 * SOCKET_HASH_BYTES)
  const folder = join(home, 'sandboxes', name)
  return {
    name,
    agentSocket: join(home, 'run', 'sandboxes', hash, 'agent.sock'),
    logs: join(folder, 'logs'),
    runtime: join(folder, 'runtime'),
  }
}

const SOCKET_HASH_BYTES = 12
/** The size of `sun_path` (unix(7)) without its terminating zero. */
const SOCKET_PATH_BYTES = 107

/** Throws when `home` is too long a path for the runtime's sockets. */
export function assertHomeShortEnough(home: string): void {
  const longest = join(home, 'run', 'sandboxes', '0'.repeat(2 * SOCKET_HASH_BYTES), 'control.sock')
  const over = Buffer.byteLength(longest) - SOCKET_PATH_BYTES
  if (over > 0)
    throw new Error(
      `the path ${home} is ${String(over)} bytes too long for the sockets of microVMs: use a shorter data folder`,
    )
}

/**
 * The environment of every process of the runtime. It takes no variable from the worker's own environment, which could
 * point the runtime to a cloud, to other credentials or to another home.
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

/** Describes what isolates a sandbox. */
export function describeIsolation(version: string): string {
  return `microVM (libkrun by microsandbox ${version}, KVM)`
}
