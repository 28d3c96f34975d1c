import { constants } from 'node:os'
import { hasErrorCode } from '../../../lib/error-code.ts'

/**
 * Runs a command that goes on until an interrupt, or until the reader of its output has gone. Aborts the signal then, waits
 * until the work has cleaned up, and returns the exit code. Such a command may have started PostgreSQL, which must be stopped.
 */
export async function untilEnd(work: (signal: AbortSignal) => Promise<void>): Promise<number> {
  const end = new AbortController()
  let exitCode = 0
  for (const name of ['SIGINT', 'SIGTERM'] as const)
    process.on(name, () => {
      exitCode = 128 + constants.signals[name]
      end.abort(new Error(`ended by ${name}`))
    })
  process.stdout.on('error', (error) => {
    end.abort(error)
  })
  try {
    await work(end.signal)
  } catch (error) {
    if (!end.signal.aborted && !hasErrorCode(error, 'EPIPE')) throw error
  }
  return exitCode
}
