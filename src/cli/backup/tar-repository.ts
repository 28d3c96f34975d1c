import { open, rename, rm, type FileHandle } from 'node:fs/promises'
import { existsSync } from 'node:fs'
import { dirname } from 'node:path'
import { chunkPath, type Repository, type RepositoryWriter } from './repository.ts'

// The format is ustar (POSIX.1-1988): `tar -x` makes a folder of the file, which is a repository too.

const BLOCK = 512

/** A file in a tar file. */
type Entry = { readonly at: number; readonly size: number }

/** Opens a tar file with a backup for reading. Reads only the headers. */
export async function openTarRepository(path: string): Promise<Repository & AsyncDisposable> {
  const file = await open(path, 'r')
  try {
    const entries = await readEntries(file)
    const readEntry = async (name: string): Promise<Buffer> => {
      const entry = entries.get(name)
      if (entry === undefined) throw new Error(`${path} has no ${name}`)
      const bytes = Buffer.alloc(entry.size)
      const { bytesRead } = await file.read(bytes, 0, entry.size, entry.at)
      if (bytesRead < entry.size) throw new Error(`${path} ends early`)
      return bytes
    }
    return {
      list: () =>
        Promise.resolve(
          [...entries.keys()].flatMap((name) => (name.startsWith('backups/') ? [name.slice('backups/'.length)] : [])),
        ),
      readManifest: async (name) => (await readEntry(`backups/${name}`)).toString('utf8'),
      has: (chunk) => entries.has(chunkPath(chunk)),
      readChunk: (chunk) => readEntry(chunkPath(chunk)),
      [Symbol.asyncDispose]: () => file.close(),
    }
  } catch (error) {
    await file.close()
    throw error
  }
}

/** Creates a tar file for one backup. It gets its name when it is complete. Rejects if the file exists. */
export async function openTarWriter(path: string): Promise<RepositoryWriter> {
  if (existsSync(path)) throw new Error(`${path} exists already: choose another name`)
  const draft = `${path}.new`
  const file = await open(draft, 'w', 0o600)
  const names = new Set<string>()
  let at = 0
  let last = Promise.resolve()
  const append = (name: string, bytes: Buffer): Promise<void> => {
    const padding = Buffer.alloc((BLOCK - (bytes.length % BLOCK)) % BLOCK)
    const entry = Buffer.concat([headerOf(name, bytes.length), bytes, padding])
    const from = at
    at += entry.length
    last = last.then(() => writeFully(file, entry, from)) // after a failure, every later one fails too
    return last
  }
  return {
    has: (chunk) => names.has(chunk),
    async writeChunk(chunk, compressed) {
      await append(chunkPath(chunk), compressed)
      names.add(chunk)
    },
    async commit(name, manifest) {
      await append(`backups/${name}`, Buffer.from(manifest))
      await writeFully(file, Buffer.alloc(2 * BLOCK), at)
      await file.sync()
      await rename(draft, path)
      const folder = await open(dirname(path))
      await folder.sync()
      await folder.close()
    },
    async [Symbol.asyncDispose]() {
      await last.catch(() => undefined) // the caller of the write got the error
      await file.close()
      await rm(draft, { force: true })
    },
  }
}

/** Writes all bytes. A nearly full file system takes a part without an error, and refuses the rest. */
async function writeFully(file: FileHandle, bytes: Buffer, at: number): Promise<void> {
  for (let done = 0; done < bytes.length;)
    done += (await file.write(bytes, done, bytes.length - done, at + done)).bytesWritten
}

async function readEntries(file: FileHandle): Promise<ReadonlyMap<string, Entry>> {
  const entries = new Map<string, Entry>()
  const header = Buffer.alloc(BLOCK)
  for (let at = 0; ;) {
    const { bytesRead } = await file.read(header, 0, BLOCK, at)
    if (bytesRead < BLOCK || header[0] === 0) return entries
    const sum = Number.parseInt(header.toString('latin1', 148, 156), 8)
    if (checksumOf(header) !== sum) throw new Error(`the tar file is damaged at byte ${String(at)}`)
    const size = Number.parseInt(header.toString('latin1', 124, 136), 8)
    const name = header.toString('latin1', 0, 100).replace(/\0.*$/s, '').replace(/^\.\//, '')
    entries.set(name, { at: at + BLOCK, size })
    at += BLOCK + Math.ceil(size / BLOCK) * BLOCK
  }
}

function headerOf(name: string, size: number): Buffer {
  const header = Buffer.alloc(BLOCK)
  const octal = (value: number, digits: number): string => `${value.toString(8).padStart(digits, '0')}\0`
  header.write(name, 0)
  header.write(octal(0o600, 7), 100)
  header.write(octal(0, 7), 108)
  header.write(octal(0, 7), 116)
  header.write(octal(size, 11), 124)
  header.write(octal(0, 11), 136)
  header.write('0', 156)
  header.write('ustar\x0000', 257)
  header.write(`${octal(checksumOf(header), 6)} `, 148)
  return header
}

/** The sum of all bytes, with the field of the sum taken as spaces. */
function checksumOf(header: Buffer): number {
  return header.reduce((sum, byte, index) => sum + (index >= 148 && index < 156 ? 0x20 : byte), 0)
}
