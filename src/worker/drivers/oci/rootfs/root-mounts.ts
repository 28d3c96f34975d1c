import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * The paths at which a run's file systems are mounted. Every user must be able to enter their parent folders, because users of
 * the sandbox do.
 */
export type RootfsPaths = {
  readonly base: string
  /** The sandbox's disk, which contains its writable layer. */
  readonly disk: string
  /** The merged root file system. */
  readonly root: string
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
    pins: join(base, 'pins'),
  }
}

type MountDeps = { readonly commands: HostCommands; readonly settings: { readonly uidShift: number } }

/** Mounts a disk and creates the folders of the writable layer on it. */
export async function mountDisk({ commands, settings }: MountDeps, paths: RootfsPaths, image: string): Promise<void> {
  await mkdir(paths.disk, { recursive: true, mode: 0o711 })
  await mkdir(paths.root, { recursive: true, mode: 0o711 })
  await commands.callSystem(['disk', image, paths.disk, String(settings.uidShift)])
}

/**
 * Overlay features that are turned off. With any of them on, a changed lower layer would make the result undefined (kernel,
 * overlayfs.rst).
 */
const ROOT_OPTIONS = 'redirect_dir=off,metacopy=off,index=off'

/**
 * Mounts the root as an overlay of the disk's writable layer over the image's layers. `layers` lists the lowest layer first.
 */
export async function mountRoot(commands: HostCommands, paths: RootfsPaths, layers: readonly string[]): Promise<void> {
  await commands.callSystem(['root', paths.base, ROOT_OPTIONS, ...layers])
}
