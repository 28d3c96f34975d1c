import { join } from 'node:path'
import type { Log } from '../../../lib/log.ts'
import { beginPerl, holdPerl, type PerlProcess } from '../../perl-process.ts'
import type { RuntimeExit } from './exec-status.ts'

/**
 * Starts programs by a small process of its own. Node forks itself to start one, and stands still meanwhile: 0.7 ms with
 * 50 MiB in memory, 3.4 with 200 and 14.5 with 600 (2026-11), for every command in every sandbox.
 */
export type Launcher = {
  /**
   * Starts a command line, its first word found on the PATH, in `/` and in a session of its own. The files at `files` are
   * its standard input, output and error, and what it may read as descriptors from 3 on; each must open without waiting.
   * Rejects, in words, when it can't be started.
   */
  start(command: readonly string[], files: readonly [string, string, string, ...string[]]): Promise<Launched>
  /** Lets go of the small process; what it started goes on. */
  close(): void
}

/** A program that was started. */
export type Launched = {
  /** Also the number of its session and process group. */
  readonly pid: number
  isRunning(): boolean
  /** Resolves once it was reaped, or with no code when nobody is left to tell. Never rejects. */
  readonly ended: Promise<RuntimeExit>
}

type Waiting = {
  readonly started: (pid: number) => void
  readonly failed: (error: Error) => void
  readonly ended: (exit: RuntimeExit) => void
}

const SCRIPT = join(import.meta.dirname, 'launcher.pl')

/**
 * Makes a launcher. Its process starts with the first program, and anew after it was killed. With the file of a lease, it
 * starts nothing once the lease is over.
 */
export function makeLauncher(log: Log, leaseFile: string | null = null): Launcher {
  const waiting = new Map<number, Waiting>()
  let helper: PerlProcess | null = null
  let count = 0

  const forget = (number: number): void => {
    waiting.delete(number)
    if (waiting.size === 0) holdPerl(helper, false)
  }
  const takeLine = (line: string): void => {
    const [, word = '', number = '', rest = ''] = /^(\w+) (\d+) (.*)$/s.exec(line) ?? []
    const one = waiting.get(Number(number))
    if (word === 'started') one?.started(Number(rest))
    if (word === 'ended') one?.ended({ code: rest === '-' ? null : Number(rest) })
    if (word === 'failed') one?.failed(new Error(rest))
    if (word !== 'started') forget(Number(number))
  }
  const begin = (): PerlProcess => {
    const onEnd = (error?: Error): void => {
      if (helper === begun) helper = null
      for (const one of waiting.values()) {
        one.failed(new Error('the launcher has ended', { cause: error }))
        one.ended({ code: null })
      }
      waiting.clear()
    }
    const begun = beginPerl({
      script: SCRIPT,
      args: [process.arch, String(process.pid), ...(leaseFile === null ? [] : [leaseFile])],
      onLine: takeLine,
      onEnd,
      log,
    })
    return begun
  }

  return {
    start(command, files) {
      const number = ++count
      const { promise: ended, resolve: tellEnd } = Promise.withResolvers<RuntimeExit>()
      let isRunning = true
      return new Promise((resolve, reject) => {
        waiting.set(number, {
          started: (pid) => {
            resolve({ pid, ended, isRunning: () => isRunning })
          },
          failed: reject,
          ended: (exit) => {
            isRunning = false
            tellEnd(exit)
          },
        })
        helper ??= begin()
        holdPerl(helper, true)
        helper.stdin.write(encodeRequest(number, files, command))
      })
    },
    close() {
      helper?.stdin.end()
      helper = null
    },
  }
}

function encodeRequest(number: number, files: readonly string[], command: readonly string[]): Buffer {
  const text = Buffer.from([...files, ...command].map((field) => `${field}\0`).join(''))
  const head = Buffer.alloc(9)
  head.writeUInt32BE(5 + text.length, 0)
  head.writeUInt32BE(number, 4)
  head.writeUInt8(files.length, 8)
  return Buffer.concat([head, text])
}
