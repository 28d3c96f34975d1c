import { join } from 'node:path'
import type { Log } from '../../lib/log.ts'
import {
  CommandError,
  makeCommandRunner,
  tryCommand,
  type CommandResult,
  type CommandRunner,
} from '../../lib/run-command.ts'
import { encodeFields, makeProgramStarter } from './perl-process.ts'
import { makeSystemCallWorkers } from './system-call-workers.ts'
import { SYSTEM_CALLS_SCRIPT } from './system-calls.ts'

/** Commands that are run by a small process of its own. */
export type CommandHelper = {
  readonly commands: CommandRunner
  /** Lets go of the small process; commands that run go on to their end, untold. */
  close(): void
}

const SCRIPT = join(import.meta.dirname, '../perl/command-helper.pl')
/** What a pipe holds at least (pipe(7)), with some room: the helper never waits for a command to read. */
const INPUT_LIMIT_BYTES = 60_000

/**
 * Makes a helper. Node forks itself to start a command and stands still meanwhile, 3.4 ms with 200 MiB in memory: of a
 * worker that starts and removes one sandbox after another that was half of all its time (2026-11, 2 cores). Commands
 * with an environment, user or signal of their own, and those with much or with NULs to read, are Node's to start all the same.
 */
export function makeCommandHelper(log: Log): CommandHelper {
  const perl = makeProgramStarter<CommandResult>({ script: SCRIPT, args: [], log, exitOf: resultOf })
  const callers = makeSystemCallWorkers(log)

  const attempt: typeof tryCommand = (file, args, options) => {
    const { timeoutMs, input = '', cwd = process.cwd(), netns = '' } = options
    const isPlain = options.env === undefined && options.uid === undefined && options.gid === undefined
    const fields = [cwd, netns, String(input), file, ...args]
    const isSplit = fields.some((field) => field.includes('\0')) // a request ends each field by it
    if (file === 'perl' && args[0] === SYSTEM_CALLS_SCRIPT && isPlain && !isSplit)
      return callers.attempt(args, timeoutMs)
    if (!isPlain || isSplit || options.signal !== undefined || Buffer.byteLength(input) > INPUT_LIMIT_BYTES)
      return tryCommand(file, args, options)
    return new Promise((resolve, reject) => {
      let pid: number | null = null
      let isLate = false
      const late = setTimeout(() => {
        isLate = true
        if (pid !== null) kill(pid)
      }, timeoutMs)
      perl.start(encodeFields(fields), {
        started: (begun) => {
          pid = begun
          if (isLate) kill(pid)
        },
        failed: (error) => {
          clearTimeout(late)
          reject(new CommandError(file, args, null, error))
        },
        ended: (result) => {
          clearTimeout(late)
          resolve(result)
        },
      })
    })
  }
  return {
    commands: makeCommandRunner(attempt),
    close() {
      perl.close()
      callers.close()
    },
  }
}

/** Kills a command that takes too long, with what it started. */
function kill(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error // it ended meanwhile
  }
}

function resultOf(rest: string): CommandResult {
  const [code = '-', stdout = '', stderr = ''] = rest.split(' ')
  const text = (hex: string): string => Buffer.from(hex, 'hex').toString('utf8')
  return { code: code === '-' ? null : Number(code), stdout: text(stdout), stderr: text(stderr) }
}
