import { Readable } from 'node:stream'
import { cutIntoChunks } from './content-chunks.ts'
import type { Stored } from './manifest.ts'
import { chunkName, compress, readVerified, type Repository, type RepositoryWriter } from './repository.ts'

/** Counts what a backup reads and writes. */
export type Tally = { readBytes: number; newChunks: number; writtenBytes: number }

/** How many chunks are compressed and written at a time. */
const CONCURRENT_CHUNKS = 4

/** Stores a stream. Writes only the chunks that the repository doesn't have. */
export async function storeStream(
  writer: RepositoryWriter,
  tally: Tally,
  stream: AsyncIterable<Uint8Array>,
): Promise<Stored> {
  const chunks: string[] = []
  const writing = new Set<Promise<void>>()
  let bytes = 0
  const pending = new Set<string>()
  const failures: unknown[] = []
  const store = async (name: string, chunk: Buffer): Promise<void> => {
    const compressed = await compress(chunk)
    await writer.writeChunk(name, compressed)
    tally.newChunks += 1
    tally.writtenBytes += compressed.length
  }
  try {
    for await (const chunk of cutIntoChunks(stream)) {
      const name = chunkName(chunk)
      chunks.push(name)
      bytes += chunk.length
      tally.readBytes += chunk.length
      if (pending.has(name) || writer.has(name)) continue
      pending.add(name)
      const one: Promise<void> = store(name, chunk)
        .catch((error: unknown) => void failures.push(error))
        .finally(() => writing.delete(one))
      writing.add(one)
      if (writing.size >= CONCURRENT_CHUNKS) await Promise.race(writing)
      if (failures.length > 0) break
    }
  } finally {
    await Promise.all(writing)
  }
  if (failures.length > 0) throw failures[0]
  return { bytes, chunks }
}

/** Reads a stored stream, and checks each chunk. */
export function readStored(repository: Pick<Repository, 'readChunk'>, { chunks }: Stored): Readable {
  return Readable.from(readChunks(repository, chunks), { objectMode: false })
}

async function* readChunks(
  repository: Pick<Repository, 'readChunk'>,
  chunks: readonly string[],
): AsyncGenerator<Buffer> {
  for (const chunk of chunks) yield await readVerified(repository, chunk)
}
