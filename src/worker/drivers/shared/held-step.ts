import { closeSync, constants, fstatSync, openSync, type Stats } from 'node:fs'
import { open } from 'node:fs/promises'

/** Linux's O_PATH, which Node's constants lack. It has this value on every architecture that Node supports. */
const O_PATH = 0o10000000
export const STEP_FLAGS = O_PATH | constants.O_NOFOLLOW
export const ROOT_FLAGS = O_PATH | constants.O_DIRECTORY

/** One open step of a path: a folder on the way, or the file or folder at its end. */
export type HeldStep = { readonly fd: number; stat(): Promise<Stats>; close(): Promise<void> }

/** Opens one step of a path. Rejects with the kernel's error code. */
type OpenStep = (path: string, flags: number) => Promise<HeldStep>

/** Opens a step on another thread, because opening may block, for example on a volume whose server is unreachable. */
export const openStepAsync: OpenStep = open

/**
 * Opens a step on this thread, for files that the kernel has in memory. A step takes 4 us of processor time; on another
 * thread it would take 45 us. Each start of a sandbox opens about sixty steps (2026-11).
 */
export const openStepSync: OpenStep = async (path, flags) => {
  const fd = await Promise.resolve(openSync(path, flags))
  return {
    fd,
    stat: () => Promise.resolve(fstatSync(fd)),
    close() {
      closeSync(fd)
      return Promise.resolve()
    },
  }
}

export async function isSymlink(handle: HeldStep): Promise<boolean> {
  try {
    return (await handle.stat()).isSymbolicLink()
  } catch (error) {
    await handle.close()
    throw error // EACCES: a disk image, which only the sandbox may enter
  }
}

/** The path by which the file of a step can be opened, or names beneath its folder. */
export function handlePath(handle: HeldStep): string {
  return `/proc/self/fd/${String(handle.fd)}`
}
