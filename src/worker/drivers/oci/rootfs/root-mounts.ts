import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/** Where a run's file systems are mounted. Any user must be able to pass the folders above: so do users of the sandbox. */
export type RootfsPaths = {
  readonly base: string
  /** The sandbox's disk, which holds its writable layer. */
  readonly disk: string
  /** The merged root file system. */
  readonly root: string
  /** The pins of its mounts. See `PinnedMount`. */
  readonly pins: string
}

/** The paths of a run's mounts. */
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

/** With any of these on, a lower layer that changes would make the result undefined (kernel, overlayfs.rst). */
const ROOT_OPTIONS = 'redirect_dir=off,metacopy=off,index=off'

/** Mounts the root: an overlay of the image's layers, the lowest first, beneath the disk's writable layer. */
export async function mountRoot(commands: HostCommands, paths: RootfsPaths, layers: readonly string[]): Promise<void> {
  await commands.callSystem(['root', paths.base, ROOT_OPTIONS, ...layers])
}
