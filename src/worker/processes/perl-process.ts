import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import type { Log } from '../../lib/log.ts'

/** A Perl process that works for this one. `perl/perl-process.pl` is its side of the protocol. */
export type PerlProcess = ChildProcessByStdio<Writable, Readable, null>

/** One line that a Perl process answered: a word, the number of the request, and the rest. */
export type PerlReply = { readonly word: string; readonly number: number; readonly rest: string }

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

type PerlOptions = {
  readonly script: string
  readonly args: readonly string[]
  readonly onReply: (reply: PerlReply) => void
  /** May be called twice: with the reason when the process could not be started, and without one when it is gone. */
  readonly onEnd: (error?: Error) => void
  readonly log: Log
}

/**
 * Starts a Perl process in `/` and in a session of its own; its only variable is PATH. Throws when this process has no
 * file descriptors left for the pipes.
 */
export function startPerl({ script, args, onReply, onEnd, log }: PerlOptions): PerlProcess {
  const started = spawn('perl', [script, ...args], {
    stdio: ['pipe', 'pipe', 'inherit'],
    detached: true,
    cwd: '/',
    env: { PATH: `${process.env['PATH'] ?? ''}:${SYSTEM_PATH}` },
  })
  if (!(started.stdin instanceof Socket)) {
    started.once('error', (error) => {
      log.warn({ err: error, script }, 'a Perl process could not be started')
    })
    throw new Error(`${script} could not be started: this process has no file descriptors left`)
  }
  started.once('error', onEnd)
  started.once('close', () => {
    onEnd()
  })
  started.stdin.on('error', (error) => {
    log.debug({ err: error, script }, 'a Perl process reads no more') // `close` reports its end
  })
  onLines(started.stdout, (line) => {
    const [, word = '', number = '', rest = ''] = /^(\w+) (\d+) ?(.*)$/s.exec(line) ?? []
    onReply({ word, number: Number(number), rest })
  })
  started.unref()
  return started
}

/** Sends a request; its replies carry `number`. */
export function sendRequest(perl: PerlProcess, number: number, fields: Buffer): void {
  const head = Buffer.alloc(8)
  head.writeUInt32BE(4 + fields.length, 0)
  head.writeUInt32BE(number, 4)
  perl.stdin.write(Buffer.concat([head, fields]))
}

/** Encodes text fields of a request. Each ends with a NUL, so none may contain one. */
export function encodeFields(fields: readonly string[]): Buffer {
  return Buffer.from(fields.map((field) => `${field}\0`).join(''))
}

/** Sets whether the Perl process keeps this process alive: only while a reply is awaited. */
export function setKeepsAlive(perl: PerlProcess | null, keepsAlive: boolean): void {
  for (const stream of [perl?.stdin, perl?.stdout]) {
    if (!(stream instanceof Socket)) continue
    if (keepsAlive) stream.ref()
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

/** Starts programs by a Perl process of its own. */
type ProgramStarter<Exit> = {
  /** Starts the program that the script reads from `fields`. */
  readonly start: (fields: Buffer, observer: ProgramObserver<Exit>) => void
  /** Ends the Perl process; the programs that it started go on. */
  readonly close: () => void
}

/** Callbacks for one program: `started` and then `ended`, or `failed` at any time. */
type ProgramObserver<Exit> = {
  readonly started: (pid: number) => void
  /** The program was not started, or the process that would report its end is gone. */
  readonly failed: (error: Error) => void
  readonly ended: (exit: Exit) => void
}

type PerlScript<Exit> = {
  readonly script: string
  /** Arguments after the id of this process, which every script gets first. */
  readonly args: readonly string[]
  readonly log: Log
  /** Parses what the script reports about the end of a program. */
  readonly exitOf: (text: string) => Exit
}

/** A Perl process with the programs that it was asked for. A successor has its own, so late replies can't mix. */
type StarterProcess<Exit> = { readonly perl: PerlProcess; readonly observers: Map<number, ProgramObserver<Exit>> }

/**
 * Makes a starter. Its process starts with the first program. When it is killed, all who wait for it fail, and the next
 * program starts a new one.
 */
export function makeProgramStarter<Exit>(script: PerlScript<Exit>): ProgramStarter<Exit> {
  let current: StarterProcess<Exit> | null = null
  let lastNumber = 0
  const startProcess = (): StarterProcess<Exit> => {
    const started = startStarterProcess(script, () => {
      if (current === started) current = null
    })
    return started
  }
  return {
    start(fields, observer) {
      const number = ++lastNumber
      try {
        current ??= startProcess()
      } catch (error) {
        observer.failed(new Error('no Perl process could be started', { cause: error }))
        return
      }
      current.observers.set(number, observer)
      setKeepsAlive(current.perl, true)
      sendRequest(current.perl, number, fields)
    },
    close() {
      current?.perl.stdin.end()
      current = null
    },
  }
}

function startStarterProcess<Exit>(
  { script, args, log, exitOf }: PerlScript<Exit>,
  onEnd: () => void,
): StarterProcess<Exit> {
  const observers = new Map<number, ProgramObserver<Exit>>()
  const perl = startPerl({
    script,
    args: [String(process.pid), ...args],
    onReply: ({ word, number, rest }) => {
      const observer = observers.get(number)
      if (word === 'started') {
        observer?.started(Number(rest))
        return
      }
      observers.delete(number)
      if (observers.size === 0) setKeepsAlive(perl, false)
      if (word === 'failed') observer?.failed(new Error(rest))
      if (word === 'ended') observer?.ended(exitOf(rest))
    },
    onEnd: (error) => {
      onEnd()
      const left = [...observers.values()]
      observers.clear()
      for (const observer of left) observer.failed(new Error(`the process of ${script} has ended`, { cause: error }))
    },
    log,
  })
  return { perl, observers }
}
