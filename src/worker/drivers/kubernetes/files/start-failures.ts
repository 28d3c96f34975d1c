import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
import { awaitUntilAborted } from '../../../../lib/await-answer.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { containerStatus, describeWaiting, isOver, type Pod } from '../pod.ts'
import { FILES_CONTAINER } from './files-pod.ts'

/** Fails for a Pod that has ended, or whose container can't be made. */
export function judgeOf(uid: string): (pod: Pod | undefined) => boolean {
  return (pod) => {
    if (pod?.metadata.uid !== uid || isOver(pod)) throw new Error('the Pod ended')
    const { reason = '', message = reason } = containerStatus(pod, FILES_CONTAINER)?.state?.waiting ?? {}
    if (reason.startsWith('Err') || reason.endsWith('Error')) throw new Error(message)
    return false
  }
}

/** Says why a Pod could not be made. */
export function describeFailure(error: unknown): string {
  if (isApiError(error, 404)) return 'the namespace of the organization is gone'
  return error instanceof Error ? error.message : 'unknown'
}

/** The refusal of an operation whose Pod did not start. */
export function notStarted(why: string, cause: unknown): VolumeFileError {
  return unavailable(`the Pod that serves the files of the volume did not start: ${why}`, cause)
}

/** What the cluster says of a Pod that is not ready yet. */
export function describeUnready(pod: Pod | undefined): string {
  return describeWaiting(pod, FILES_CONTAINER)
}

/** Waits for a promise until the signal aborts. If that is because of a time limit, rejects with what `late` makes of the signal's reason. */
export async function awaitInTime<T>(
  promise: Promise<T>,
  signal: AbortSignal,
  late: (reason: Error) => VolumeFileError,
): Promise<T> {
  try {
    return await awaitUntilAborted(promise, signal)
  } catch (error) {
    if (error === signal.reason && error instanceof Error && error.name === 'TimeoutError') throw late(error)
    throw error
  }
}

/** The refusal of a request that may succeed later. */
export function unavailable(message: string, cause?: unknown): VolumeFileError {
  return new VolumeFileError('unavailable', message, cause)
}
