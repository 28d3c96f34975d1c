import { join } from 'node:path'
import { spawn as spawnTerminal } from '@lydell/node-pty'
import { tryCommand, type CommandResult } from '../../src/lib/run-command.ts'
import type { RealServer } from './server.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { waitUntil } from './wait.ts'

/**
 * The unmodified public command line client: the one from npm `microsandbox`, or the newer program that
 * `npm run test:clients` names.
 */
const NEWER_MSB = process.env['SANDYARD_TEST_MSB']
const NPM_MSB = join(import.meta.dirname, '../../node_modules/.bin/msb')
const [PROGRAM, FIRST_ARGS] = NEWER_MSB === undefined ? [process.execPath, [NPM_MSB]] : [NEWER_MSB, []]
const LIMIT_MS = 60_000

/** Runs `msb` against a server. Without `input`, its standard input is empty. A failure is a result, not an error. */
export function runMsb(
  server: Pick<RealServer, 'clientEnv'>,
  args: readonly string[],
  options: { readonly input?: string | Buffer; readonly env?: Readonly<Record<string, string>> } = {},
): Promise<CommandResult> {
  return tryCommand(PROGRAM, [...FIRST_ARGS, ...args], {
    timeoutMs: LIMIT_MS * TIMEOUT_FACTOR,
    env: { ...process.env, ...server.clientEnv, ...options.env },
    ...(options.input === undefined ? {} : { input: options.input }),
  })
}

/** `msb` in a terminal. */
export type MsbTerminal = {
  write(text: string): void
  resize(rows: number, cols: number): void
  /** Resolves with the whole output when it matches. */
  shown(pattern: RegExp): Promise<string>
  /** The exit code. */
  ended(): Promise<number>
}

/** Runs `msb` in a terminal of 24 rows and 80 columns. */
export function startMsbInTerminal(server: Pick<RealServer, 'clientEnv'>, args: readonly string[]): MsbTerminal {
  let seen = ''
  let code: number | null = null
  const terminal = spawnTerminal(PROGRAM, [...FIRST_ARGS, ...args], {
    rows: 24,
    cols: 80,
    env: { ...process.env, ...server.clientEnv, TERM: 'xterm' },
  })
  terminal.onData((text) => {
    seen += text
  })
  terminal.onExit(({ exitCode }) => {
    code = exitCode
  })
  return {
    write: (text) => {
      terminal.write(text)
    },
    resize: (rows, cols) => {
      terminal.resize(cols, rows)
    },
    async shown(pattern) {
      try {
        await waitUntil(() => pattern.test(seen))
      } catch (cause) {
        throw new Error(`the terminal never showed ${String(pattern)}, but: ${JSON.stringify(seen)}`, { cause })
      }
      return seen
    },
    async ended() {
      await waitUntil(() => code !== null, LIMIT_MS)
      return code ?? -1
    },
  }
}
