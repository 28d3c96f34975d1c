import { spawn, type ChildProcess } from 'node:child_process'
import { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import type { Log } from '../../lib/log.ts'

/** A Perl helper process of the worker. `perl/perl-process.pl` implements its side of the protocol. */
export type PerlProcess = Pick<ChildProcess, 'kill' | 'pid'> & { readonly stdin: Writable; readonly stdout: Readable }

/** One reply line of a Perl process: a word, the number of the request, and the rest. */
export type PerlReply = { readonly word: string; readonly number: number; readonly rest: string }

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

type PerlOptions = {
  readonly script: string
  readonly args: readonly string[]
  readonly onReply: (reply: PerlReply) => void
  /** Called for each socket that the process hands over, with the number of the request. Absent: it hands over none. */
  readonly onSocket?: (number: number, socket: Socket) => void
  /**
   * Called with an error when the process could not be started, and without an error when it has ended. It may be
   * called in both ways, one after the other.
   */
  readonly onEnd: (error?: Error) => void
  readonly log: Log
}

/**
 * Starts a Perl process in the folder `/` and in a session of its own. Its only environment variable is PATH. Throws
 * when the worker has no file descriptors left for the pipes.
 */
export function startPerl({ script, args, onReply, onSocket, onEnd, log }: PerlOptions): PerlProcess {
  const started = spawn('perl', [script, ...args], {
    stdio: onSocket === undefined ? ['pipe', 'pipe', 'inherit'] : ['pipe', 'pipe', 'inherit', 'ipc'],
    detached: true,
    cwd: '/',
    env: { PATH: `${process.env['PATH'] ?? ''}:${SYSTEM_PATH}` },
  })
  const { stdin, stdout } = started
  if (!(stdin instanceof Socket && stdout instanceof Socket)) {
    started.once('error', (error) => {
      log.warn({ error, script }, 'a Perl process could not be started')
    })
    throw new Error(`${script} could not be started: this process has no file descriptors left`)
  }
  started.once('error', onEnd)
  started.once('close', () => {
    onEnd()
  })
  stdin.on('error', (error) => {
    log.debug({ error, script }, 'a Perl process no longer reads its input') // `close` reports the process's end
  })
  onLines(stdout, (line) => {
    const [, word = '', number = '', rest = ''] = /^(\w+) (\d+) ?(.*)$/s.exec(line) ?? []
    onReply({ word, number: Number(number), rest })
  })
  if (onSocket !== undefined) takeSockets(started, onSocket)
  started.unref()
  return { stdin, stdout, pid: started.pid, kill: (signal) => started.kill(signal) }
}

function takeSockets(started: ChildProcess, onSocket: (number: number, socket: Socket) => void): void {
  started.on('message', (message, socket) => {
    if (!(socket instanceof Socket)) return
    socket.allowHalfOpen = true // each direction ends by itself
    if (typeof message === 'object' && 'number' in message) onSocket(Number(message.number), socket)
    else socket.destroy()
  })
  started.channel?.unref()
}

/** Sends a request. Its replies contain the same `number`. */
export function sendRequest(perl: PerlProcess, number: number, fields: Buffer): void {
  const head = Buffer.alloc(8)
  head.writeUInt32BE(4 + fields.length, 0)
  head.writeUInt32BE(number, 4)
  perl.stdin.write(Buffer.concat([head, fields]))
}

/** Encodes text fields of a request. A NUL ends each field, so no field may contain one. */
export function encodeFields(fields: readonly string[]): Buffer {
  return Buffer.from(fields.map((field) => `${field}\0`).join(''))
}

/** Sets whether the Perl process keeps Node's event loop alive. It should do so only while a reply is pending. */
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

/** Starts programs through its own Perl process. */
type ProgramStarter<Exit> = {
  /** Starts the program that the script reads from `fields`. Returns the number of the request. */
  readonly start: (fields: Buffer, observer: ProgramObserver<Exit>) => number
  /** Ends the Perl process. The programs that it started continue. */
  readonly close: () => void
}

/**
 * Callbacks for one program. `started` is called first, then `detached` if the program leaves a process, then `ended`.
 * `failed` may be called in place of any; nothing follows it.
 */
type ProgramObserver<Exit> = {
  readonly started: (pid: number) => void
  /** Called when the program has exited and left a process. `ended` then reports the exit of that process. */
  readonly detached?: (left: string) => void
  /** Called when the program was not started, or when the process that would report its end has ended. */
  readonly failed: (error: Error) => void
  readonly ended: (exit: Exit) => void
}

type PerlScript<Exit> = {
  readonly script: string
  /** Arguments for the script. They follow the worker's process id, which is the first argument of every script. */
  readonly args: readonly string[]
  readonly log: Log
  /** Parses what the script reports about the end of a program. */
  readonly exitOf: (text: string) => Exit
}

/**
 * A Perl process and the observers of its programs. The process that replaces it has its own observers. Late replies of
 * the old process therefore can't reach observers of the new one.
 */
type StarterProcess<Exit> = { readonly perl: PerlProcess; readonly observers: Map<number, ProgramObserver<Exit>> }

/**
 * Creates a starter. Its Perl process starts with the first program. When that process is killed, all its observers
 * fail, and the next program starts a new process.
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
        return number
      }
      current.observers.set(number, observer)
      setKeepsAlive(current.perl, true)
      sendRequest(current.perl, number, fields)
      return number
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
      if (word === 'detached') {
        observer?.detached?.(rest)
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
