import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { hasErrorCode } from '../../lib/error-code.ts'

/** What an archive contains: paths beneath a folder, without `except` and what is beneath it. */
export type ArchiveSource = { readonly dir: string; readonly paths: readonly string[]; readonly except?: string }

/** Owners as numbers, modes, extended attributes, ACLs, hard links; holes are not stored. */
const FLAGS = ['--numeric-owner', '--xattrs', '--xattrs-include=*', '--acls', '--sparse'] as const

/** tar(1): a file changed, disappeared or shrank while it was read. */
const SOME_DIFFER = 1
/** tar's last line if it could not read some files and has archived all others. */
const READ_TO_THE_END = 'tar: Exiting with failure status due to previous errors'
const ERROR_TAIL_CHARS = 1_000
const MAX_FLAWS = 100

/** Thrown when files can't be read. In their place, an archive would have zeros or nothing. */
export class UnreadableFiles extends Error {}

export type ReadOptions = {
  /** Whether the files may change meanwhile. Then a file that changed or disappeared is no failure. One that shrank is. */
  readonly isChanging: boolean
  /** Called at the end for each file that can't be read. Without it, the stream fails. */
  readonly onFlaw?: (text: string) => void
  readonly signal?: AbortSignal
}

/** Reads files as a tar stream. Sockets are left out. */
export async function* readArchive(
  { dir, paths, except }: ArchiveSource,
  { isChanging, onFlaw, signal }: ReadOptions,
): AsyncGenerator<Buffer> {
  const quiet = ['file-ignored', ...(isChanging ? ['file-changed', 'file-removed'] : [])]
  const warnings = quiet.map((kind) => `--warning=no-${kind}`)
  const excluded = except === undefined ? [] : ['--anchored', '--no-wildcards', `--exclude=${except}`]
  const options = [...FLAGS, ...warnings, ...excluded]
  const args = ['--create', '--file=-', `--directory=${dir}`, '--sort=name', ...options, '--', ...paths]
  const child = spawn('tar', args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, LC_ALL: 'C' },
    ...(signal === undefined ? {} : { signal, killSignal: 'SIGKILL' as const }),
  })
  const ended = once(child, 'close') as Promise<[number | null]>
  ended.catch(() => undefined) // awaited below, unless the reader stops early
  const stderr = collectLines(child.stderr)
  try {
    yield* child.stdout as AsyncIterable<Buffer>
    const [code] = await ended
    const { first, last, count } = stderr()
    if (code === 0 || (isChanging && code === SOME_DIFFER && count === 0)) return
    const isComplete = code === SOME_DIFFER || last === READ_TO_THE_END
    if (!isComplete) throw new Error(`${dir} can't be read: ${last === '' ? `tar ended with ${String(code)}` : last}`)
    const flaws = first.filter((line) => line !== READ_TO_THE_END).map((line) => line.replace(/^tar: /, ''))
    if (count > MAX_FLAWS) flaws.push(`and ${String(count - MAX_FLAWS)} more messages like these`)
    if (onFlaw === undefined) throw new UnreadableFiles(`${dir} can't be read: ${flaws.join('; ')}`)
    for (const flaw of flaws) onFlaw(flaw)
  } finally {
    if (child.exitCode === null) child.kill('SIGKILL')
  }
}

/** What a writer to tar gets if tar ends first. Then tar knows the reason, and else the stream does. */
const TAR_ENDED = ['EPIPE', 'ECONNRESET', 'ERR_STREAM_PREMATURE_CLOSE'] as const

/** Writes the files of a tar stream beneath a folder. Rejects unless tar has written all of them. */
export async function writeArchive(stream: Readable, dir: string): Promise<void> {
  // Without --ignore-zeros, tar ends at the mark of an archive's end, and the stream breaks off if it hasn't ended yet.
  const options = ['--ignore-zeros', '--preserve-permissions', '--same-owner', ...FLAGS]
  const args = ['--extract', '--file=-', `--directory=${dir}`, ...options]
  const child = spawn('tar', args, { stdio: ['pipe', 'ignore', 'pipe'] })
  const ended = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>
  const stderr = collectTail(child.stderr)
  const [written, closed] = await Promise.allSettled([pipeline(stream, child.stdin), ended])
  if (closed.status === 'rejected') throw closed.reason
  if (written.status === 'rejected' && !hasErrorCode(written.reason, ...TAR_ENDED)) throw written.reason
  const [code, signal] = closed.value
  const how = signal === null ? `tar ended with ${String(code)}` : `tar was ended by ${signal}`
  if (code !== 0) throw new Error(`${dir} can't be written: ${stderr() || how}`)
  if (written.status === 'rejected') throw written.reason
}

function collectTail(stream: Readable): () => string {
  let text = ''
  stream.setEncoding('utf8').on('data', (part: string) => {
    text = (text + part).slice(-ERROR_TAIL_CHARS)
  })
  return () => text.trim()
}

/** Collects the first lines of a stream, and the last one. */
function collectLines(stream: Readable): () => {
  readonly first: readonly string[]
  readonly last: string
  readonly count: number
} {
  const first: string[] = []
  let last = ''
  let count = 0
  createInterface({ input: stream }).on('line', (line) => {
    if (count < MAX_FLAWS) first.push(line)
    last = line
    count += 1
  })
  return () => ({ first, last, count })
}
