import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import { zstdCompress, zstdDecompress } from 'node:zlib'

/**
 * Where backups are: chunks, which all backups share, and one manifest for each backup. A folder (`folder-repository.ts`) or
 * a tar file with the files of such a folder (`tar-repository.ts`).
 */
export type Repository = {
  /** The file names of all complete backups, oldest first. */
  list(): Promise<readonly string[]>
  readManifest(name: string): Promise<string>
  has(chunk: string): boolean
  /** Reads the compressed bytes of a chunk. Rejects if it is missing. */
  readChunk(chunk: string): Promise<Buffer>
}

/**
 * A repository to which a backup is added. Until `commit` succeeds, nothing of it counts. `has` knows a chunk once it is written as a
 * whole.
 */
export type RepositoryWriter = Pick<Repository, 'has'> & {
  writeChunk(chunk: string, compressed: Buffer): Promise<void>
  /** Makes these chunks durable, and then the manifest, which names them. */
  commit(name: string, manifest: string, chunks: ReadonlySet<string>): Promise<void>
} & AsyncDisposable

/** Thrown when the target of a backup can't be written. Nothing more can be stored there. */
export class TargetError extends Error {}

/** The largest size of a chunk. A damaged file can't make us fill the memory. */
const MAX_CHUNK_BYTES = 16 * 1024 * 1024

const compressBytes = promisify(zstdCompress)
const decompressBytes = promisify(zstdDecompress)

export function compress(bytes: Buffer): Promise<Buffer> {
  return compressBytes(bytes)
}

/** Returns the name of a chunk: the SHA-256 of its bytes. */
export function chunkName(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}

/** The path of a chunk in a repository. */
export function chunkPath(chunk: string): string {
  return `chunks/${chunk.slice(0, 2)}/${chunk}`
}

/** Reads a chunk and checks its bytes. Rejects if it is missing or damaged, with the chunk's path. */
export async function readVerified(repository: Pick<Repository, 'readChunk'>, chunk: string): Promise<Buffer> {
  const compressed = await repository.readChunk(chunk).catch((cause: unknown) => {
    throw new Error(`${chunkPath(chunk)} is missing`, { cause })
  })
  const bytes = await decompressBytes(compressed, { maxOutputLength: MAX_CHUNK_BYTES }).catch((cause: unknown) => {
    throw new Error(`${chunkPath(chunk)} is damaged`, { cause })
  })
  if (chunkName(bytes) !== chunk) throw new Error(`${chunkPath(chunk)} is damaged: its hash differs`)
  return bytes
}
