import { spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'

/** What an archive contains: paths beneath a folder. */
export type ArchiveSource = { readonly dir: string; readonly paths: readonly string[] }

/** Owners as numbers, modes, extended attributes, ACLs, hard links; holes are not stored. */
const FLAGS = ['--numeric-owner', '--xattrs', '--xattrs-include=*', '--acls', '--sparse'] as const

/** tar(1): a file changed or disappeared while it was read. */
const SOME_DIFFER = 1
const ERROR_TAIL_CHARS = 1_000

/**
 * Reads files as a tar stream. The stream fails if tar fails. If files may change meanwhile (`isChanging`), a file that
 * changed or disappeared is no failure.
 */
export async function* readArchive(
  { dir, paths }: ArchiveSource,
  { isChanging, signal }: { readonly isChanging: boolean; readonly signal?: AbortSignal },
): AsyncGenerator<Buffer> {
  const changing = isChanging ? ['--ignore-failed-read', '--warning=no-file-changed', '--warning=no-file-removed'] : []
  const args = ['--create', '--file=-', `--directory=${dir}`, '--sort=name', ...FLAGS, ...changing, '--', ...paths]
  const child = spawn('tar', args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(signal === undefined ? {} : { signal, killSignal: 'SIGKILL' as const }),
  })
  const ended = once(child, 'close') as Promise<[number | null]>
  ended.catch(() => undefined) // awaited below, unless the reader stops early
  const stderr = collectTail(child.stderr)
  try {
    yield* child.stdout as AsyncIterable<Buffer>
    const [code] = await ended
    if (code !== 0 && !(isChanging && code === SOME_DIFFER)) throw new Error(`${dir} can't be read: ${stderr()}`)
  } finally {
    if (child.exitCode === null) child.kill('SIGKILL')
  }
}

/** Writes the files of a tar stream beneath a folder. */
export async function writeArchive(stream: Readable, dir: string): Promise<void> {
  const args = ['--extract', '--file=-', `--directory=${dir}`, '--preserve-permissions', '--same-owner', ...FLAGS]
  const child = spawn('tar', args, { stdio: ['pipe', 'ignore', 'pipe'] })
  const ended = once(child, 'close') as Promise<[number | null]>
  const stderr = collectTail(child.stderr)
  const [written, closed] = await Promise.allSettled([pipeline(stream, child.stdin), ended])
  if (closed.status === 'rejected') throw closed.reason
  if (closed.value[0] !== 0 && stderr() !== '') throw new Error(`${dir} can't be written: ${stderr()}`)
  if (written.status === 'rejected') throw written.reason
}

function collectTail(stream: Readable): () => string {
  let text = ''
  stream.setEncoding('utf8').on('data', (part: string) => {
    text = (text + part).slice(-ERROR_TAIL_CHARS)
  })
  return () => text.trim()
}
