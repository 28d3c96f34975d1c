import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../lib/error-code.ts'
import { runCommand } from '../../../lib/run-command.ts'

/** The sizes of the stored layers. Each is in a small file, so that a restarted worker need not measure layers again. */
export type LayerSizes = {
  /** Returns the total size of all stored layers in bytes. Measures a layer whose size is unknown. */
  total(): Promise<number>
  /** Returns the size of a stored layer in bytes. */
  of(name: string): Promise<number>
  /** Stores the size of a layer that has its final name. */
  set(name: string, bytes: number): Promise<void>
  /** Forgets the size of a layer that is being deleted. Succeeds for an unknown layer. */
  forget(name: string): Promise<void>
}

type LayerSizesInput = { readonly dir: string; readonly layersDir: string }

/** The time limit for measuring a layer of an older installation. It suffices for a million files on a slow disk. */
const MEASURE_TIMEOUT_MS = 10 * 60_000

/** Opens the folder of sizes. Creates the folder when it is missing. */
export async function openLayerSizes({ dir, layersDir }: LayerSizesInput): Promise<LayerSizes> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const known = new Map<string, number>()

  async function set(name: string, bytes: number): Promise<void> {
    known.set(name, bytes)
    await writeFile(join(dir, name), String(bytes), { mode: 0o600 })
  }

  async function sizeOf(name: string): Promise<number> {
    const stored = known.get(name) ?? (await readSize(join(dir, name)))
    if (stored !== null) {
      known.set(name, stored)
      return stored
    }
    const bytes = await measure(join(layersDir, name))
    await set(name, bytes)
    return bytes
  }

  async function forget(name: string): Promise<void> {
    known.delete(name)
    await rm(join(dir, name), { force: true })
  }

  return {
    of: sizeOf,
    set,
    forget,
    async total() {
      const names = new Set(await readdir(layersDir))
      for (const name of known.keys()) {
        if (!names.has(name)) await forget(name)
      }
      let bytes = 0
      for (const name of names) bytes += await sizeOf(name)
      return bytes
    },
  }
}

async function readSize(path: string): Promise<number | null> {
  try {
    const bytes = Number(await readFile(path, 'utf8'))
    return Number.isSafeInteger(bytes) && bytes > 0 ? bytes : null
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

async function measure(folder: string): Promise<number> {
  const { stdout } = await runCommand('du', ['--summarize', '--block-size=1', '--', folder], {
    timeoutMs: MEASURE_TIMEOUT_MS,
  })
  return Number.parseInt(stdout, 10)
}
