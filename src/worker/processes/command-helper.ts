import { join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'
import type { Log } from '../../lib/log.ts'
import { CommandError, makeCommandRunner, tryCommand, type CommandResult } from '../../lib/run-command.ts'
import { encodeFields, makeProgramStarter } from './perl-process.ts'
import { CALL_TIMEOUT_MS, makeSystemCallWorkers, type HostCommands } from './system-calls.ts'

/** Runs commands and makes system calls through small helper processes. */
export type CommandHelper = {
  readonly commands: HostCommands
  /** Ends the helper processes. Running commands continue, but their results are lost. */
  close(): void
}

const SCRIPT = join(import.meta.dirname, '../perl/command-helper.pl')
/**
 * The maximum size of a command's input. A pipe has room for it (64 KiB, pipe(7)), so the helper never waits for a
 * command to read.
 */
const INPUT_LIMIT_BYTES = 60_000

/**
 * Creates a helper. Without it, Node forks for each command, and the whole worker stops meanwhile: for 3.4 ms with 200
 * MiB in memory. A worker that starts and removes one sandbox after another spent half of its time on forks (2026-11, 2
 * cores). Node itself still starts a command with its own environment, user or signal, and a command whose input is
 * large or contains a NUL.
 */
export function makeCommandHelper(log: Log): CommandHelper {
  const starter = makeProgramStarter<CommandResult>({ script: SCRIPT, args: [], log, exitOf: parseResult })
  const systemCalls = makeSystemCallWorkers(log)
  /** Those that may take minutes, such as copies of whole disks. They must not delay the starts and commands of all sandboxes. */
  const longCalls = makeSystemCallWorkers(log)

  const attempt: typeof tryCommand = (file, args, options) => {
    const { timeoutMs, input = '', cwd = process.cwd(), netns = '' } = options
    const isPlain = options.env === undefined && options.uid === undefined && options.gid === undefined
    const fields = [cwd, netns, String(input), file, ...args]
    const hasNul = fields.some((field) => field.includes('\0')) // a NUL would end a field of the request
    if (!isPlain || hasNul || options.signal !== undefined || Buffer.byteLength(input) > INPUT_LIMIT_BYTES)
      return tryCommand(file, args, options)
    return new Promise((resolve, reject) => {
      let pid: number | null = null
      let isLate = false
      const late = setTimeout(() => {
        isLate = true
        if (pid !== null) kill(pid)
      }, timeoutMs)
      starter.start(encodeFields(fields), {
        started: (startedPid) => {
          pid = startedPid
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
    commands: {
      ...makeCommandRunner(attempt),
      callSystem(call, options = { timeoutMs: CALL_TIMEOUT_MS }) {
        return (options.timeoutMs > CALL_TIMEOUT_MS ? longCalls : systemCalls).callSystem(call, options)
      },
    },
    close() {
      starter.close()
      systemCalls.close()
      longCalls.close()
    },
  }
}

/** Kills a command that takes too long, and all processes that it started. */
function kill(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch (error) {
    if (!hasErrorCode(error, 'ESRCH')) throw error // the command has ended meanwhile
  }
}

function parseResult(rest: string): CommandResult {
  const [code = '-', stdout = '', stderr = ''] = rest.split(' ')
  const text = (hex: string): string => Buffer.from(hex, 'hex').toString('utf8')
  return { code: code === '-' ? null : Number(code), stdout: text(stdout), stderr: text(stderr) }
}
