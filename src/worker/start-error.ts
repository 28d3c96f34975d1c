import { AssertionError } from 'node:assert'
import type { StartFailure } from '../contract/workers/worker-protocol.ts'

/** The reasons that a request causes. The others are about the machine. */
const OF_REQUEST: ReadonlySet<StartFailure> = new Set(['image', 'registry', 'patch', 'mount', 'config', 'cancelled'])
/** The errors of JavaScript itself. */
const BUGS = [TypeError, RangeError, ReferenceError, SyntaxError, AssertionError] as const

/**
 * The failure of a sandbox's start, with its reason. The sandbox's owner sees the message. The message must contain no
 * secret and no host path.
 */
export class StartError extends Error {
  readonly reason: StartFailure
  /** Whether the request caused the failure, such as a mistyped image. The log then needs no stack. */
  readonly isOfRequest: boolean
  constructor(reason: StartFailure, message: string, cause?: unknown) {
    super(message, { cause })
    this.reason = reason
    this.isOfRequest = OF_REQUEST.has(reason) && !(cause instanceof Error && BUGS.some((bug) => cause instanceof bug))
  }
}

/**
 * An error whose message the sandbox's owner may see. For code that does not know which `StartFailure` applies;
 * `withStartFailure` adds that reason.
 */
export class OwnerVisibleError extends Error {}

/**
 * Turns a rejection of `work` into a `StartError` with the given reason. The owner sees `message`, or the message of an
 * `OwnerVisibleError`. The original error becomes the cause. A `StartError` passes through unchanged.
 */
export async function withStartFailure<T>(reason: StartFailure, message: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof StartError) throw error
    throw new StartError(reason, error instanceof OwnerVisibleError ? error.message : message, error)
  }
}
