import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
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

/** Says why a Pod did not start. `isLate`: it took too long. */
export function describeFailure(
  error: unknown,
  { isLate, pod }: { readonly isLate: boolean; readonly pod: Pod | undefined },
): string {
  if (isLate) return describeWaiting(pod, FILES_CONTAINER)
  if (isApiError(error, 404)) return 'the namespace of the organization is gone'
  return error instanceof Error ? error.message : 'unknown'
}

/** The refusal of a request that may succeed later. */
export function unavailable(message: string, cause?: unknown): VolumeFileError {
  return new VolumeFileError('unavailable', message, cause)
}
