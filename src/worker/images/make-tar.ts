import { buffer } from 'node:stream/consumers'
import { pack } from 'tar-stream'

/** A file of an archive, or a folder if its content is null. `name` is a relative path. */
export type TarFile = { readonly name: string; readonly content: Buffer | null; readonly mode: number }

const EPOCH = new Date(0)

/**
 * Makes a tar archive of files in their order, with the folders above them. The user 0 owns all. The same files always
 * make the same bytes.
 */
export async function makeTar(files: readonly TarFile[]): Promise<Buffer> {
  const tar = pack()
  const folders = new Set<string>()
  const addFolder = (name: string, mode = 0o755): void => {
    if (!folders.has(name)) tar.entry({ name, type: 'directory', mode, mtime: EPOCH })
    folders.add(name)
  }
  for (const { name, content, mode } of files) {
    for (const folder of foldersAbove(name)) addFolder(folder)
    if (content === null) addFolder(name, mode)
    else tar.entry({ name, mode, mtime: EPOCH }, content)
  }
  tar.finalize()
  return await buffer(tar)
}

function foldersAbove(name: string): readonly string[] {
  const parts = name.split('/').slice(0, -1)
  return parts.map((_, index) => parts.slice(0, index + 1).join('/'))
}
