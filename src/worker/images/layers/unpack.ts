import { createHash } from 'node:crypto'
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { extract, pack, type Extract, type Pack } from 'tar-stream'
import { StartError } from '../../start-error.ts'
import { decompress } from '../blob.ts'
import { makeLayerFilter, type LayerFilter } from './layer-filter.ts'
import type { ImageLimits } from '../image.ts'
import type { LayerBudget } from '../image-budget.ts'
import { READ_OPTIONS, type TarHeader, asBuffer, readTarEntry, writeWithBackpressure } from './tar-streams.ts'

/** Starts to read and verify a layer's bytes. Aborting the signal ends the read. */
export type OpenBlob = (signal: AbortSignal) => AsyncIterable<Buffer>

/** Counts what is unpacked. Each function throws or rejects with `StartError` at a limit. */
export type UnpackMeter = LayerBudget & {
  /** Called after each chunk. May wait for space. */
  check(): Promise<void>
}

type UnpackOptions = {
  /** The empty folder to unpack into. */
  readonly into: string
  readonly uidShift: number
  readonly limits: ImageLimits
  readonly budget: UnpackMeter
  readonly signal: AbortSignal
}

/**
 * Unpacks one layer (uncompressed, gzip or zstd) while it is downloaded. Returns its diff_id: the SHA-256 of its
 * uncompressed tar stream, as `sha256:…`. Entries go through the layer filter into GNU tar. It can create device nodes
 * and extended attributes, which Node can't. Rejects with `StartError`, and then leaves part of the layer in the
 * folder. Works in small pieces, so the event loop is never blocked.
 */
export async function unpackLayer(open: OpenBlob, options: UnpackOptions): Promise<string> {
  const hash = createHash('sha256')
  const filter = makeLayerFilter(options)
  const reader = extract(READ_OPTIONS)
  const writer = pack()
  const stop = new AbortController()
  const tar = spawnTar(options.into)
  const failures: unknown[] = []
  const fail = (error: unknown): void => {
    failures.push(error)
    stop.abort(error)
    const cause = error instanceof Error ? error : new Error('unpacking failed')
    reader.destroy(cause)
    writer.destroy(cause)
    tar.kill('SIGKILL')
  }
  const onAbort = (): void => {
    fail(options.signal.reason)
  }
  reader.on('error', fail)
  writer.on('error', fail)
  options.signal.addEventListener('abort', onAbort, { once: true })
  if (options.signal.aborted) onAbort()

  const work = [
    waitForTar(tar),
    decompress(open(stop.signal), (plain) =>
      feed(plain, { reader, hash, budget: options.budget, signal: stop.signal }),
    ),
    copyEntries(reader, writer, { filter, fail, signal: stop.signal }),
    pump(writer, tar.stdin, stop.signal),
  ]
  await Promise.allSettled(work.map((part) => part.catch(fail)))
  options.signal.removeEventListener('abort', onAbort)
  if (options.signal.aborted)
    throw new StartError('cancelled', 'unpacking a layer was cancelled', options.signal.reason)
  if (failures.length > 0) throw asStartError(failures[0])
  return `sha256:${hash.digest('hex')}`
}

// Converts the first failure of the pipeline, which causes all others, to a `StartError`.
function asStartError(first: unknown): StartError {
  if (first instanceof StartError) return first
  return new StartError(
    'image',
    `a layer is not a valid tar stream: ${first instanceof Error ? first.message : 'unreadable'}`,
    first,
  )
}

type FeedOptions = {
  readonly reader: Extract
  readonly hash: ReturnType<typeof createHash>
  readonly budget: UnpackMeter
  readonly signal: AbortSignal
}

const TAR_BLOCK_BYTES = 512

async function feed(plain: AsyncIterable<Buffer>, { reader, hash, budget, signal }: FeedOptions): Promise<void> {
  let size = 0
  for await (const chunk of plain) {
    size += chunk.length
    budget.addBytes(chunk.length)
    await budget.check()
    hash.update(chunk)
    await writeWithBackpressure(reader, chunk, signal)
  }
  // umoci omits the padding of the last file and the two zero blocks at the end. Additional zeros are harmless.
  const padding = (TAR_BLOCK_BYTES - (size % TAR_BLOCK_BYTES)) % TAR_BLOCK_BYTES
  await writeWithBackpressure(reader, Buffer.alloc(padding + 2 * TAR_BLOCK_BYTES), signal)
  reader.end(null)
}

type CopyOptions = {
  readonly filter: LayerFilter
  readonly fail: (error: unknown) => void
  readonly signal: AbortSignal
}

async function copyEntries(reader: Extract, writer: Pack, { filter, fail, signal }: CopyOptions): Promise<void> {
  // Each entry is a separate stream, which also fails when the tar stream fails. Without a handler for that error, the
  // process would end.
  const add = (header: TarHeader): ReturnType<Pack['entry']> => {
    const sink = writer.entry(header)
    sink.on('error', fail)
    return sink
  }
  for (const header of filter.begin()) add(header)
  for await (const source of reader) {
    const { parents, entry } = filter.accept(readTarEntry(source.header))
    for (const parent of parents) add(parent)
    if (entry?.type === 'file') {
      const sink = add(entry)
      for await (const chunk of source) await writeWithBackpressure(sink, asBuffer(chunk), signal)
      sink.end(null)
    } else {
      if (entry !== null) add(entry)
      source.resume()
    }
  }
  for (const header of filter.finish()) add(header)
  writer.finalize()
}

async function pump(from: AsyncIterable<unknown>, to: Writable, signal: AbortSignal): Promise<void> {
  for await (const chunk of from) {
    if (to.destroyed) return // tar ended early, and its exit code is reported
    await writeWithBackpressure(to, asBuffer(chunk), signal)
  }
  to.end()
}

type Tar = ChildProcessByStdio<Writable, null, Readable>

function spawnTar(into: string): Tar {
  const args = ['--extract', '--file=-', `--directory=${into}`, '--numeric-owner', '--same-owner', '--same-permissions']
  args.push(
    '--delay-directory-restore',
    '--xattrs',
    '--xattrs-include=trusted.overlay.opaque',
    '--warning=no-timestamp',
  )
  // TAR_OPTIONS in the environment would change what tar does. The C locale keeps names as bytes.
  return spawn('tar', args, {
    stdio: ['pipe', 'ignore', 'pipe'],
    env: { PATH: process.env['PATH'] ?? '/usr/bin:/bin', LC_ALL: 'C' },
  })
}

/** The maximum length of tar's error output to keep, in characters. */
const STDERR_LIMIT_CHARS = 500

async function waitForTar(tar: Tar): Promise<void> {
  let stderr = ''
  tar.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr = `${stderr}${text}`.slice(0, STDERR_LIMIT_CHARS)
  })
  tar.stdin.on('error', () => {
    tar.stdin.destroy() // tar ended before it read all input, and its exit code is reported
  })
  const code = await new Promise<number | null>((resolve, reject) => {
    tar.once('error', reject)
    tar.once('close', resolve)
  }).catch((error: unknown) => {
    throw new StartError('host', 'GNU tar could not be run; install the package tar', error)
  })
  if (code === 0) return
  throw new StartError(
    'host',
    `a layer could not be unpacked on this worker: ${stderr.trim() === '' ? 'tar was killed' : stderr.trim()}`,
  )
}
