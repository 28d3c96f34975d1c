import { chmodSync, chownSync, lchownSync, readdirSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * The paths at which a run's file systems are mounted. Of the host's users, only root and the sandbox's own group may
 * enter `base`. A runtime mounts the root as user 0 of the sandbox, and other local users must not read a sandbox's
 * files.
 */
export type RootfsPaths = {
  readonly base: string
  /** The sandbox's disk, which contains its writable layer. */
  readonly disk: string
  /** The merged root file system. */
  readonly root: string
  /** The sandbox's `/dev`, with device nodes of its own. */
  readonly devices: string
  /** The pins of the run's mounts. See `PinnedMount`. */
  readonly pins: string
}

/** Returns the paths of a run's mounts. */
export function rootfsPaths(mountDir: string, run: string): RootfsPaths {
  const base = join(mountDir, run)
  return {
    base,
    disk: join(base, 'disk'),
    root: join(base, 'root'),
    devices: join(base, 'dev'),
    pins: join(base, 'pins'),
  }
}

type MountDeps = { readonly commands: HostCommands; readonly settings: { readonly uidShift: number } }

/** Mounts a disk and the devices of a sandbox. Creates the folders of the writable layer on the disk. */
export async function mountDisk({ commands, settings }: MountDeps, paths: RootfsPaths, image: string): Promise<void> {
  const { uidShift } = settings
  await mkdir(paths.base, { recursive: true, mode: 0o700 })
  for (const folder of [paths.disk, paths.root, paths.devices]) await mkdir(folder, { recursive: true, mode: 0o711 })
  await commands.callSystem(['disk', image, paths.disk, String(uidShift)])
  await commands.callSystem(['devices', paths.devices])
}

/**
 * Gives the devices to user 0 of the sandbox, whose id on the host is `shift`, and lets its group enter `base`. The files are in
 * memory, so this takes 0.1 ms (2026-11).
 */
export function assignMounts({ base, devices }: RootfsPaths, shift: number): void {
  for (const name of readdirSync(devices)) lchownSync(join(devices, name), shift, shift)
  chownSync(devices, shift, shift)
  chownSync(base, 0, shift)
  chmodSync(base, 0o710)
}

/**
 * Overlay features that are turned off. With any of these on, a change of a lower layer would make the content of the
 * overlay undefined (kernel, overlayfs.rst).
 */
const ROOT_OPTIONS = 'redirect_dir=off,metacopy=off,index=off'

type RootInput = {
  /** The image's layers, the lowest first. */
  readonly layers: readonly string[]
  /** See `RunUsers`. */
  readonly mountMapPath: string | null
}

/** Mounts the root as an overlay of the disk's writable layer over the image's layers. */
export async function mountRoot(
  commands: HostCommands,
  paths: RootfsPaths,
  { layers, mountMapPath }: RootInput,
): Promise<void> {
  await commands.callSystem(['root', paths.base, ROOT_OPTIONS, mountMapPath ?? '', ...layers])
}
