import { CommandError } from '../../lib/run-command.ts'
import { StartError } from '../start-error.ts'

/**
 * Turns a failure of the store's disk or tools into `StartError('host')`. Returns any other error unchanged: it is a
 * `StartError` already, or a bug.
 */
export function toHostError(error: unknown, reference: string): unknown {
  const isOfHost = error instanceof CommandError || (error instanceof Error && 'syscall' in error)
  return isOfHost
    ? new StartError('host', `image ${reference} could not be stored on this worker: ${error.message}`, error)
    : error
}
