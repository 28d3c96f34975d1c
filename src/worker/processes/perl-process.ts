import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import type { Log } from '../../lib/log.ts'

/** A small Perl process that starts programs for this one: it is asked on its input and answers in lines. */
export type PerlProcess = ChildProcessByStdio<Writable, Readable, null>

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** What a Perl process is started with. */
type PerlOptions = {
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

/** Has programs started by a small Perl process of its own. */
type ProgramStarter<Exit> = {
  /** Asks for a program by what the script reads of it, behind its number. */
  readonly start: (request: Buffer, waiting: ProgramObserver<Exit>) => void
  /** Lets go of the Perl process; what it started goes on. */
  readonly close: () => void
}

/** Who asked for a program, and is told of it. */
type ProgramObserver<Exit> = {
  readonly started: (pid: number) => void
  /** It was not started, or nobody is left who could tell how it ended. */
  readonly failed: (error: Error) => void
  readonly ended: (exit: Exit) => void
}

type PerlScript<Exit> = {
  readonly script: string
  /** Behind the architecture and the id of this process, which every script is given. */
  readonly args: readonly string[]
  readonly log: Log
  /** Reads what the script says of the end of a program. */
  readonly exitOf: (text: string) => Exit
}

/** A Perl process, with those that wait for what it was asked: the end of another one is nothing to them. */
type StarterProcess<Exit> = { readonly perl: PerlProcess; readonly waiting: Map<number, ProgramObserver<Exit>> }

/** Its process starts with the first program, and anew after it was killed, of which all are told who wait for it. */
export function makeProgramStarter<Exit>(input: PerlScript<Exit>): ProgramStarter<Exit> {
  let current: StarterProcess<Exit> | null = null
  let count = 0
  const begin = (): StarterProcess<Exit> => {
    const begun = startStarterProcess(input, () => {
      if (current === begun) current = null
    })
    return begun
  }
  return {
    start(request, one) {
      const number = ++count
      try {
        current ??= begin()
      } catch (error) {
        one.failed(new Error('no Perl process could be started', { cause: error }))
        return
      }
      current.waiting.set(number, one)
      setKeepsAlive(current.perl, true)
      sendRequest(current.perl, Buffer.concat([encodeNumber(number), request]))
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
  const waiting = new Map<number, ProgramObserver<Exit>>()
  const perl = startPerl({
    script,
    args: [process.arch, String(process.pid), ...args],
    onLine: (line) => {
      const [, word = '', number = '', rest = ''] = /^(\w+) (\d+) (.*)$/s.exec(line) ?? []
      const one = waiting.get(Number(number))
      if (word === 'started') {
        one?.started(Number(rest))
        return
      }
      waiting.delete(Number(number))
      if (waiting.size === 0) setKeepsAlive(perl, false)
      if (word === 'failed') one?.failed(new Error(rest))
      if (word === 'ended') one?.ended(exitOf(rest))
    },
    onEnd: (error) => {
      onEnd()
      const left = [...waiting.values()]
      waiting.clear()
      for (const one of left) one.failed(new Error(`the process of ${script} has ended`, { cause: error }))
    },
    log,
  })
  return { perl, waiting }
}

function encodeNumber(number: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(number, 0)
  return bytes
}
