import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import type { SandboxId } from '../../../domain/ids.ts'
import { findMissingPrograms } from '../shared/machine.ts'

/** The genuine runtime as npm installed it. */
export type MicrosandboxInstallation = { readonly msb: string; readonly version: string }

const PLATFORM_PACKAGES: Readonly<Partial<Record<string, string>>> = {
  x64: '@superradcompany/microsandbox-linux-x64-gnu',
  arm64: '@superradcompany/microsandbox-linux-arm64-gnu',
}

/** The runtime's program in the npm package of this platform; null when npm left it out. */
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

/** Programs of the host that this driver calls. */
const PROGRAMS = ['mount', 'umount', 'tar'] as const

/**
 * Where distributions keep the certificates of authorities. The runtime (0.6.18) aborts when it finds none, whether it
 * will reach for a registry or not.
 */
const CERTIFICATES = [
  '/etc/ssl/certs/ca-certificates.crt',
  '/etc/pki/tls/certs/ca-bundle.crt',
  '/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem',
  '/etc/ssl/ca-bundle.pem',
  '/etc/ssl/cert.pem',
] as const

/** Everything that keeps microVMs from running on this machine, in words; empty when nothing does. */
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
  // On other processors an open device is all there is to see.
  if (process.arch === 'x64' && !/^flags\s*:.*\b(?:vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8')))
    lacks.push('the processor offers no virtualization (no vmx or svm in /proc/cpuinfo)')
  return lacks
}

/** Where the runtime keeps what it has of one sandbox, beneath its home (0.6.18; the tests ask the SDK itself). */
export type VmPaths = {
  readonly name: string
  readonly agentSocket: string
  /** Captured output, and what the virtual machine's kernel said. */
  readonly logs: string
  /** Shared with the guest; its agent writes a heartbeat there. */
  readonly runtime: string
}

/** The runtime's name of a sandbox, and its places. One name for all runs, because the disk is the name's. */
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
/** What `sun_path` holds (unix(7)), less its closing zero. */
const SOCKET_PATH_BYTES = 107

/** Throws, in words, when the runtime could not make its sockets beneath a home. */
export function assertHomeShortEnough(home: string): void {
  const longest = join(home, 'run', 'sandboxes', '0'.repeat(2 * SOCKET_HASH_BYTES), 'control.sock')
  const over = Buffer.byteLength(longest) - SOCKET_PATH_BYTES
  if (over > 0)
    throw new Error(
      `the path ${home} is ${String(over)} bytes too long for the sockets of microVMs: use a shorter data folder`,
    )
}

/**
 * The environment of every process of the runtime: nothing of the worker's own, so that no variable of its operator can
 * lead the runtime to a cloud, to other credentials or to another home.
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

/** What a sandbox is isolated by, for people. */
export function describeIsolation(version: string): string {
  return `microVM (libkrun by microsandbox ${version}, KVM)`
}
