import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { ChildProcess } from 'node:child_process'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { spawnProgram } from './server.ts'
import { waitUntil } from './wait.ts'

/** The program as a process that a test can kill, freeze and restart. */
export type ProgramProcess = {
  /** The id of the current process; 0 when there is none. */
  pid(): number
  /** The output of all processes of this program so far: standard output and logs. */
  output(): string
  /** Starts the program and waits until its output matches `isReady`. Resolves with the match. */
  start(): Promise<RegExpExecArray>
  /** Stops the program with SIGTERM, and waits until it has ended. */
  stop(): Promise<void>
  kill9(): Promise<void>
  /** Freezes the program with SIGSTOP until `thaw` is called. */
  freeze(): void
  thaw(): void
}

/** Runs the program to its end. Resolves with its exit code, and its standard output and error together. */
export async function runProgram(
  args: readonly string[],
  settings: Readonly<Record<string, string>>,
): Promise<{ readonly code: number | null; readonly output: string }> {
  const child = spawnProgram(args, settings)
  child.stdin?.end()
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  }
  const timer = setTimeout(() => child.kill('SIGKILL'), READY_LIMIT_MS * TIMEOUT_FACTOR)
  await once(child, 'close')
  clearTimeout(timer)
  return { code: child.exitCode, output }
}

const READY_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 40_000

/** Prepares a program; `start` starts it. */
export function makeProgram(
  args: readonly string[],
  settings: Readonly<Record<string, string>>,
  isReady: RegExp,
): ProgramProcess {
  let child: ChildProcess | null = null
  let said = ''
  const hasEnded = (one: ChildProcess): boolean => one.exitCode !== null || one.signalCode !== null
  const signal = (name: NodeJS.Signals): void => {
    if (child !== null && !hasEnded(child)) child.kill(name)
  }
  const end = async (name: NodeJS.Signals): Promise<void> => {
    const ending = child
    if (ending === null) return
    signal(name)
    if (name === 'SIGTERM') signal('SIGCONT')
    await waitUntil(() => hasEnded(ending), STOP_LIMIT_MS)
    child = null
  }
  return {
    pid: () => child?.pid ?? 0,
    output: () => said,
    async start() {
      const from = said.length
      const started = spawnProgram(args, settings)
      child = started
      for (const stream of [started.stdout, started.stderr]) {
        stream?.setEncoding('utf8').on('data', (text: string) => {
          said += text
        })
      }
      return await waitUntil(() => {
        assert.ok(!hasEnded(started), `\`sandyard ${args.join(' ')}\` ended:\n${said.slice(from)}`)
        return isReady.exec(said.slice(from)) ?? undefined
      }, READY_LIMIT_MS * TIMEOUT_FACTOR)
    },
    stop: () => end('SIGTERM'),
    kill9: () => end('SIGKILL'),
    freeze: () => signal('SIGSTOP'),
    thaw: () => signal('SIGCONT'),
  }
}
