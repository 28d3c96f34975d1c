import type { StartFailure } from '../../../contract/workers/worker-protocol.ts'
import { StartError } from '../driver.ts'
import { BlockedPathError } from './root-tree.ts'

/** Gives a failure its kind; its own text goes to the log as cause, unless it was written for the sandbox's owner. */
export async function withStartFailure<T>(reason: StartFailure, message: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof BlockedPathError) throw new StartError(reason, error.message, error)
    throw error instanceof StartError ? error : new StartError(reason, message, error)
  }
}

/** A failure that nobody gave a kind yet gets this one. */
export function asStartError(reason: StartFailure, error: unknown): StartError {
  return error instanceof StartError ? error : new StartError(reason, 'the worker could not start the sandbox', error)
}
