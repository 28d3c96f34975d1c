import type { SnapshotFailureCode } from '../contract/snapshots/snapshot-protocol.ts'
import { hasErrorCode } from '../lib/error-code.ts'
import { CommandError } from '../lib/run-command.ts'
import { StartError } from './start-error.ts'

/** Why a snapshot could not be made. The owner of the sandbox sees the message. It must contain no host path. */
export class SnapshotFailure extends Error {
  readonly code: SnapshotFailureCode
  constructor(code: SnapshotFailureCode, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }

  /** Turns any error into the failure that its owner sees. `message` is for errors that say nothing to the owner. */
  static of(error: unknown, message: string): SnapshotFailure {
    if (error instanceof SnapshotFailure) return error
    if (error instanceof StartError && error.reason === 'disk')
      return new SnapshotFailure('disk_full', error.message, error)
    const isFull =
      hasErrorCode(error, 'ENOSPC') || (error instanceof CommandError && /No space left/.test(error.message))
    if (isFull) return new SnapshotFailure('disk_full', "the worker's disk is full; try again later", error)
    return new SnapshotFailure('capture_failed', message, error)
  }
}
