import { createHash } from 'node:crypto'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createZstdDecompress } from 'node:zlib'
import { StartError } from '../start-error.ts'
import { TransientRegistryError } from './registry/registry-transport.ts'

/** The digest and the size that a blob must have. Each is null if it is unknown. */
type ExpectedBlob = {
  readonly digest: string | null
  readonly sizeBytes: number | null
  readonly maxBytes: number
}

/**
 * Yields the chunks of a blob and verifies the blob meanwhile. Throws `StartError('registry')` at the first excess
 * byte, or after the last chunk if the size or digest differs.
 */
export async function* verifyBlob(chunks: AsyncIterable<Uint8Array>, claim: ExpectedBlob): AsyncGenerator<Buffer> {
  const hash = createHash('sha256')
  const limitBytes = Math.min(claim.sizeBytes ?? claim.maxBytes, claim.maxBytes)
  let size = 0
  for await (const chunk of chunks) {
    size += chunk.byteLength
    if (size > limitBytes)
      throw new StartError('registry', `the content of ${nameOf(claim)} is larger than ${String(limitBytes)} bytes`)
    hash.update(chunk)
    yield Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
  }
  if (claim.sizeBytes !== null && size < claim.sizeBytes) {
    throw new TransientRegistryError(
      'registry',
      `the content of ${nameOf(claim)} ended after ${String(size)} of ${String(claim.sizeBytes)} bytes`,
    )
  }
  const digest = `sha256:${hash.digest('hex')}`
  if (claim.digest !== null && digest !== claim.digest) {
    throw new StartError(
      'registry',
      `the content of ${claim.digest} has the digest ${digest}; the registry or a proxy changed it`,
    )
  }
}

/** Reads a small blob into memory and verifies it. */
export async function readBlob(chunks: AsyncIterable<Uint8Array>, claim: ExpectedBlob): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(verifyBlob(chunks, claim)))
}

/** The SHA-256 digest of bytes. */
export function digestOf(bytes: Buffer): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`
}

/**
 * Decompresses a blob and passes its content to `consume`. The first bytes identify the format: gzip (RFC 1952), zstd
 * (RFC 8878), or uncompressed. Media types are ignored, because saved archives have none and some builders write wrong
 * ones. The caller verifies the digest of the decompressed content in any case.
 */
export async function decompress(
  blob: AsyncIterable<Buffer>,
  consume: (plain: AsyncIterable<Buffer>) => Promise<void>,
): Promise<void> {
  const { head, rest } = await peek(blob)
  const whole = prepend(head, rest)
  if (head.subarray(0, 2).equals(GZIP_MAGIC)) await pipeline(whole, createGunzip(), consume)
  else if (head.subarray(0, 4).equals(ZSTD_MAGIC)) await pipeline(whole, createZstdDecompress(), consume)
  else await consume(whole)
}

const GZIP_MAGIC = Buffer.from([0x1f, 0x8b])
const ZSTD_MAGIC = Buffer.from([0x28, 0xb5, 0x2f, 0xfd])

async function peek(
  blob: AsyncIterable<Buffer>,
): Promise<{ readonly head: Buffer; readonly rest: AsyncIterator<Buffer> }> {
  const rest = blob[Symbol.asyncIterator]()
  let head: Buffer = Buffer.alloc(0)
  while (head.length < ZSTD_MAGIC.length) {
    const next = await rest.next()
    if (next.done === true) break
    head = Buffer.concat([head, next.value])
  }
  return { head, rest }
}

async function* prepend(head: Buffer, rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  try {
    yield head
    for (let next = await rest.next(); next.done !== true; next = await rest.next()) yield next.value
  } finally {
    await rest.return?.() // closes the connection when the reader stops early
  }
}

function nameOf(claim: ExpectedBlob): string {
  return claim.digest ?? 'a document'
}
