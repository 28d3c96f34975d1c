import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'
import type { OciSettings } from '../context.ts'

/** Where a run's mounts lie. The folders above must let others pass: the sandbox's user 0 is a stranger to the host. */
export type RootfsPaths = {
  readonly base: string
  /** The sandbox's disk with its writable layer. */
  readonly disk: string
  /** The merged root file system. */
  readonly root: string
  /** Where its volumes are pinned, numbered. */
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

type MountDeps = { readonly commands: HostCommands; readonly settings: Pick<OciSettings, 'uidShift'> }

/** Mounts a disk and makes its folders. */
export async function mountDisk({ commands, settings }: MountDeps, paths: RootfsPaths, image: string): Promise<void> {
  await mkdir(paths.disk, { recursive: true, mode: 0o711 })
  await mkdir(paths.root, { recursive: true, mode: 0o711 })
  await commands.callSystem(['disk', image, paths.disk, String(settings.uidShift)])
}

/** With these on, a changed lower layer would be undefined (kernel, overlayfs.rst). */
const ROOT_OPTIONS = 'redirect_dir=off,metacopy=off,index=off'

/** Mounts an image's layers, the lowest first, beneath the disk's writable layer. */
export async function mountRoot(commands: HostCommands, paths: RootfsPaths, layers: readonly string[]): Promise<void> {
  await commands.callSystem(['root', paths.base, ROOT_OPTIONS, ...layers])
}
