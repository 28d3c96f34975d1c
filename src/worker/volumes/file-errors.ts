import { VolumeFileError, type VolumeFileProblem } from '../../contract/volumes/volume-protocol.ts'
import { errorCodeOf, hasErrorCode } from '../../lib/error-code.ts'

/** The client's error for each kernel error. Any other error is a fault of this machine. */
const ERRNO_MEANINGS: Readonly<Record<string, { readonly code: VolumeFileProblem; readonly reason: string }>> = {
  ENOENT: { code: 'volume_file_not_found', reason: 'is not there' },
  ENOTDIR: { code: 'volume_file_conflict', reason: 'is not a folder, or leads through a file' },
  EISDIR: { code: 'volume_file_conflict', reason: 'is a folder' },
  EEXIST: { code: 'volume_file_conflict', reason: 'exists' },
  ENOTEMPTY: { code: 'volume_file_conflict', reason: 'is a folder that is not empty' },
  EBUSY: { code: 'volume_file_conflict', reason: 'is in use' },
  EAGAIN: { code: 'volume_file_conflict', reason: 'is in use' },
  ETXTBSY: { code: 'volume_file_conflict', reason: 'is in use' },
  EXDEV: { code: 'volume_file_conflict', reason: 'is not in the same folder with a quota: copy instead' },
  EINVAL: { code: 'volume_file_conflict', reason: 'cannot be put there' },
  EMLINK: { code: 'volume_file_conflict', reason: 'is in a folder that can hold no more' },
  EFBIG: { code: 'volume_file_conflict', reason: 'is larger than the file system can hold' },
  ELOOP: { code: 'invalid_volume_path', reason: 'leads through too many symlinks' },
  ENAMETOOLONG: { code: 'invalid_volume_path', reason: 'is too long' },
}

/**
 * Runs a file system operation. Kernel errors become `VolumeFileError`s that contain `path` as the client wrote it, and
 * no path of the host. Faults of this machine are thrown unchanged.
 */
export async function translateErrors<T>(path: string, step: () => Promise<T>): Promise<T> {
  try {
    return await step()
  } catch (error) {
    throw toVolumeFileError(path, error)
  }
}

function toVolumeFileError(path: string, error: unknown): unknown {
  if (error instanceof VolumeFileError) return error
  if (isOutOfSpace(error))
    return new VolumeFileError('quota_exceeded', `'${path}' does not fit: the volume's cap is reached`, error)
  const meaning = ERRNO_MEANINGS[errorCodeOf(error) ?? '']
  return meaning === undefined ? error : new VolumeFileError(meaning.code, `'${path}' ${meaning.reason}`, error)
}

/** Linux's EDQUOT, for which Node has no name (`Unknown system error -122`). */
const EDQUOT = 122

/** Whether an error means a lack of space: the file system is full, or a cap is reached. */
export function isOutOfSpace(error: unknown): boolean {
  return hasErrorCode(error, 'ENOSPC') || (error instanceof Error && 'errno' in error && error.errno === -EDQUOT)
}

/** The error for a change that would take the disk space that only the control plane may use. */
export function reserveReachedError(path: string): VolumeFileError {
  return new VolumeFileError(
    'quota_exceeded',
    `'${path}' was not written: the worker's disk is full up to the reserve of the control plane (SANDYARD_DISK_RESERVE_MIB)`,
  )
}

/** The error for a file that doesn't exist, or whose kind is hidden from clients. */
export function notFoundError(path: string): VolumeFileError {
  return new VolumeFileError('volume_file_not_found', `'${path}' does not exist`)
}

/** The error for a file that prevents an operation by its state, such as a folder where a file is needed. */
export function conflictError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('volume_file_conflict', `'${path}' ${reason}`)
}

/** The error for a path that is not allowed. */
export function invalidPathError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('invalid_volume_path', `'${path}': ${reason}`)
}
