import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import type { Log } from '../../lib/log.ts'

/** A small Perl process that starts programs for this one: it is asked on its input and answers in lines. */
export type PerlProcess = ChildProcessByStdio<Writable, Readable, null>

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** What a Perl process is started with. */
export type PerlOptions = {
  readonly script: string
  readonly args: readonly string[]
  readonly onLine: (line: string) => void
  /** May be called twice: with why it could not be started, and without when it is gone. */
  readonly onEnd: (error?: Error) => void
  readonly log: Log
}

/** Starts a Perl process, in `/` and in a session of its own, with the PATH for its environment. Throws when this process has no descriptors left for its pipes. */
export function startPerl({ script, args, onLine, onEnd, log }: PerlOptions): PerlProcess {
  const begun = spawn('perl', [script, ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
    detached: true,
    cwd: '/',
    env: { PATH: `${process.env['PATH'] ?? ''}:${SYSTEM_PATH}` },
  })
  if (!(begun.stdin instanceof Socket)) {
    begun.once('error', (error) => {
      log.warn({ err: error, script }, 'a Perl process could not be started')
    })
    throw new Error(`${script} could not be started: this process has no descriptors left`)
  }
  begun.once('error', onEnd)
  begun.once('close', () => {
    onEnd()
  })
  begun.stdin.on('error', (error) => {
    log.debug({ err: error, script }, 'a Perl process takes nothing') // its end is told by `close`
  })
  onLines(begun.stdout, onLine)
  begun.unref()
  return begun
}

/** Sends a request as `take_requests` of `perl-process.pl` reads it. */
export function sendRequest(perl: PerlProcess, request: Buffer): void {
  const head = Buffer.alloc(4)
  head.writeUInt32BE(request.length, 0)
  perl.stdin.write(Buffer.concat([head, request]))
}

/** Fields of a request, each ended by a NUL, so that none may hold one. */
export function encodeFields(fields: readonly string[]): Buffer {
  return Buffer.from(fields.map((field) => `${field}\0`).join(''))
}

/** Keeps this process alive for its sake only while something is waited for. */
export function setKeepsAlive(perl: PerlProcess | null, isHeld: boolean): void {
  for (const stream of [perl?.stdin, perl?.stdout]) {
    if (!(stream instanceof Socket)) continue
    if (isHeld) stream.ref()
    else stream.unref()
  }
}

function onLines(stream: Readable, take: (line: string) => void): void {
  let rest = ''
  stream.setEncoding('utf8').on('data', (text: string) => {
    const lines = (rest + text).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) take(line)
  })
}
