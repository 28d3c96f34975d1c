import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import type {
  BindMount,
  DiskImageMount,
  Mount,
  MountOptions,
  NamedMount,
  SandboxSpec,
  TmpfsMount,
} from '../../src/domain/spec/spec.ts'
import { StartError } from '../../src/worker/start-error.ts'
import { isInstalled } from './oci-driver.ts'
import { runVolume, makeDesiredRun } from './desired-run.ts'

const PLAIN: MountOptions = { readonly: false, noexec: false, nosuid: false, nodev: false }
const SHARE = { stat_virtualization: 'strict', host_permissions: 'private' } as const

/** A mount of a managed volume. */
export function named(name: string, guest: string, options: Partial<MountOptions> = {}): NamedMount {
  return { type: 'named', name, guest, options: { ...PLAIN, ...options }, ...SHARE }
}

/** A mount of a path on the default volume. */
export function bind(host: string, guest: string, options: Partial<MountOptions> = {}): BindMount {
  return { type: 'bind', host, guest, options: { ...PLAIN, ...options }, ...SHARE, quota_mib: null }
}

/** A raw disk image on the default volume. */
export function diskImage(
  host: string,
  guest: string,
  options: Partial<MountOptions> & Partial<Pick<DiskImageMount, 'format' | 'fstype'>> = {},
): DiskImageMount {
  const { format = 'raw', fstype = null, ...flags } = options
  return { type: 'disk_image', host, guest, format, fstype, options: { ...PLAIN, ...flags } }
}

/** A tmpfs of 1 MiB. */
export function tmpfs(guest: string, options: Partial<MountOptions> = {}): TmpfsMount {
  return { type: 'tmpfs', guest, options: { ...PLAIN, ...options }, size_mib: 1 }
}

/** A desired run with these mounts and with every volume that they name. */
export function desiredRunWithMounts(mounts: readonly Mount[], more: Partial<SandboxSpec> = {}): DesiredRun {
  const names = new Set(mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : [])))
  return { ...makeDesiredRun({ mounts, ...more }), volumes: [null, ...names].map(runVolume) }
}

/** Asserts that a start failed because of a mount, with a message that names no path of this machine. */
export function assertMountRefused(error: unknown, message: RegExp): true {
  assert.ok(error instanceof StartError, String(error))
  assert.equal(error.reason, 'mount')
  assert.match(error.message, message)
  assert.doesNotMatch(error.message, /sandyard|\/proc\/(self|\d)/)
  return true
}

/** Mounts a new btrfs file system. Returns null if the machine can't mount one. */
export function mountBtrfs(): { readonly folder: string; remove(): void } | null {
  if (!isInstalled('mkfs.btrfs')) return null
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-btrfs-'))
  const [image, folder] = [join(dir, 'image'), join(dir, 'mounted')]
  const remove = (): void => {
    rmSync(dir, { recursive: true, force: true, maxRetries: 3 })
  }
  try {
    execFileSync('truncate', ['-s', '160M', image])
    execFileSync('mkfs.btrfs', ['-q', image])
    execFileSync('mkdir', [folder])
    execFileSync('mount', ['-o', 'loop', image, folder], { stdio: ['ignore', 'ignore', 'pipe'] })
  } catch {
    remove()
    return null // a kernel without btrfs
  }
  return {
    folder,
    remove() {
      execFileSync('umount', [folder])
      remove()
    },
  }
}
