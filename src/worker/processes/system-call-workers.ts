import type { Log } from '../../lib/log.ts'
import { CommandError, type CommandResult } from '../../lib/run-command.ts'
import { startPerl, setKeepsAlive, encodeFields, sendRequest, type PerlProcess } from './perl-process.ts'
import { SYSTEM_CALLS_SCRIPT } from './system-calls.ts'

/** A few small processes that make the system calls of `system-calls.pl`, each one call after another. */
type SystemCallWorkers = {
  /** As `tryCommand` with `perl` and these arguments. What takes longer than `timeoutMs` is killed, with the process. */
  attempt(args: readonly string[], timeoutMs: number): Promise<CommandResult>
  /** Lets go of the processes; each ends what it is doing first. */
  close(): void
}

/** As one that waits for a disk must not keep all others waiting; mostly the first alone is busy. */
const WORKERS_LIMIT = 4

type PendingCall = {
  readonly parts: readonly string[]
  readonly timeoutMs: number
  readonly ended: (result: CommandResult) => void
  readonly failed: (error: Error) => void
}
type CallWorker = { readonly perl: PerlProcess; busyWith: PendingCall | null; late: NodeJS.Timeout | null }

/** No process is there yet: each begins with the first call that finds all others busy, and anew after it was killed. */
export function makeSystemCallWorkers(log: Log): SystemCallWorkers {
  const callers: CallWorker[] = []
  const waiting: PendingCall[] = []

  const settle = (caller: CallWorker): PendingCall | null => {
    const order = caller.busyWith
    if (caller.late !== null) clearTimeout(caller.late)
    caller.busyWith = null
    caller.late = null
    setKeepsAlive(caller.perl, false)
    return order
  }
  const begin = (): CallWorker => {
    const perl = startPerl({
      script: SYSTEM_CALLS_SCRIPT,
      args: ['serve', String(process.pid)],
      onLine: (line) => {
        const isDone = line === 'done'
        settle(caller)?.ended({ code: isDone ? 0 : 1, stdout: '', stderr: isDone ? '' : line.replace(/^failed /, '') })
        next()
      },
      onEnd: (error) => {
        if (!callers.includes(caller)) return
        callers.splice(callers.indexOf(caller), 1)
        settle(caller)?.failed(new Error('the process for system calls has ended', { cause: error }))
        next()
      },
      log,
    })
    const caller: CallWorker = { perl, busyWith: null, late: null }
    callers.push(caller)
    return caller
  }
  const beginFor = ({ failed }: PendingCall): CallWorker | null => {
    try {
      return begin()
    } catch (error) {
      failed(new Error('no process for system calls could be started', { cause: error }))
      return null
    }
  }
  const next = (): void => {
    for (let order = waiting[0]; order !== undefined; order = waiting[0]) {
      const idle = callers.find(({ busyWith }) => busyWith === null)
      if (idle === undefined && callers.length >= WORKERS_LIMIT) return
      waiting.shift()
      const caller = idle ?? beginFor(order)
      if (caller === null) continue
      caller.busyWith = order
      caller.late = setTimeout(() => caller.perl.kill('SIGKILL'), order.timeoutMs)
      setKeepsAlive(caller.perl, true)
      sendRequest(caller.perl, encodeFields(order.parts))
    }
  }

  return {
    attempt: (args, timeoutMs) =>
      new Promise((ended, reject) => {
        const failed = (error: Error): void => {
          reject(new CommandError('perl', args, null, error))
        }
        waiting.push({ parts: args.slice(1), timeoutMs, ended, failed })
        next()
      }),
    close() {
      for (const { perl } of callers) perl.stdin.end()
    },
  }
}
