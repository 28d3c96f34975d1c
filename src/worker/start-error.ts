import type { StartFailure } from '../contract/workers/worker-protocol.ts'

/** A start that failed, with its kind. The sandbox's owner sees the message, so it carries no secret and no host path. */
export class StartError extends Error {
  readonly reason: StartFailure
  constructor(reason: StartFailure, message: string, cause?: unknown) {
    super(message, { cause })
    this.reason = reason
  }
}

/** An error whose message is written for the sandbox's owner, by code that does not know the kind of failure. */
export class OwnerVisibleError extends Error {}

/**
 * Turns a rejection of `work` into a `StartError` of kind `reason`. The owner sees `message`, or the text of an
 * `OwnerVisibleError`; the original error becomes the cause. A `StartError` passes through unchanged.
 */
export async function withStartFailure<T>(reason: StartFailure, message: string, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    if (error instanceof StartError) throw error
    throw new StartError(reason, error instanceof OwnerVisibleError ? error.message : message, error)
  }
}
