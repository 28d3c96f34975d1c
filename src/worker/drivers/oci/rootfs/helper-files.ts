import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runCommand } from '../../../../lib/run-command.ts'
import { collectFiles, librariesIn, type ToolFile } from './toolbox.ts'

/** The folders of the helper image. `rules.pl` knows the paths of nft. */
const TOOLBOX = 'toolbox'
const NFT = 'nft/nft'
const NFT_LIBRARIES = 'nft'
const COMMAND_TIMEOUT_MS = 20_000
/** Where Debian has nft. The PATH of ordinary users is without it. */
const SYSTEM_FOLDERS = ['/usr/sbin', '/sbin']

/**
 * Reads the files of the helper image from this machine: the toolbox, and nft with those of its libraries that the
 * toolbox lacks. nft is left out if the machine has none.
 */
export async function collectHelperFiles(initBinary: string): Promise<readonly ToolFile[]> {
  const toolbox = await collectFiles(initBinary)
  const own = new Set(toolbox.map(({ name }) => name))
  const folders = [...(process.env['PATH'] ?? '').split(':'), ...SYSTEM_FOLDERS]
  const nft = folders.map((folder) => join(folder, 'nft')).find((path) => existsSync(path))
  const files = toolbox.map((file) => ({ ...file, name: `${TOOLBOX}/${file.name}` }))
  if (nft === undefined) return files
  const { stdout } = await runCommand('ldd', [nft], { timeoutMs: COMMAND_TIMEOUT_MS })
  const libraries = librariesIn(stdout).filter(({ name }) => !own.has(name))
  const read = async (name: string, path: string, mode: number): Promise<ToolFile> => ({
    name,
    content: await readFile(path),
    mode,
  })
  return [
    ...files,
    await read(NFT, nft, 0o755),
    ...(await Promise.all(libraries.map(({ name, path }) => read(`${NFT_LIBRARIES}/${name}`, path, 0o644)))),
  ]
}

/** Whether files of a helper image have nft. */
export function hasNft(files: readonly ToolFile[]): boolean {
  return files.some(({ name }) => name === NFT)
}
