/** Where files are: in a sandbox or on a volume. */
export type FileStore = {
  list(path: string): Promise<readonly FileEntry[]>
  read(path: string, onProgress: (bytes: number) => void): Promise<Blob>
  write(path: string, content: Blob, onProgress: (bytes: number) => void): Promise<void>
  makeFolder(path: string): Promise<unknown>
  remove(entry: FileEntry): Promise<unknown>
}

export type FileEntry = {
  readonly path: string
  readonly size: number
  readonly isFolder: boolean
  readonly modifiedMs: number | null
}

export const nameOf = (path: string): string => path.split('/').at(-1) ?? path

export const joinPath = (folder: string, name: string): string => `${folder === '/' ? '' : folder}/${name}`
