import type { Log } from '../../lib/log.ts'
import { startPerl, setKeepsAlive, sendRequest, type PerlProcess } from './perl-process.ts'

/** Has programs started by a small Perl process of its own. */
export type ProgramStarter<Exit> = {
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
