import { VolumeFileError, type VolumeFileProblem } from '../../contract/volumes/volume-protocol.ts'

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
  EXDEV: { code: 'volume_file_conflict', reason: 'lies on another file system within the volume' },
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
  if (error instanceof VolumeFileError || !(error instanceof Error) || !('code' in error)) return error
  if (isOutOfSpace(error))
    return new VolumeFileError('quota_exceeded', `'${path}' does not fit: the volume's cap is reached`, error)
  const meaning = ERRNO_MEANINGS[String(error.code)]
  return meaning === undefined ? error : new VolumeFileError(meaning.code, `'${path}' ${meaning.reason}`, error)
}

/** Linux's EDQUOT, for which Node has no name (`Unknown system error -122`). */
const EDQUOT = 122

/** Whether an error means a lack of space: the file system is full, or a cap is reached. */
export function isOutOfSpace(error: unknown): boolean {
  return hasErrorCode(error, 'ENOSPC') || (error instanceof Error && 'errno' in error && error.errno === -EDQUOT)
}

/** The error for a file that doesn't exist, or whose kind is hidden from clients. */
export function notFoundError(path: string): VolumeFileError {
  return new VolumeFileError('volume_file_not_found', `'${path}' is not there`)
}

/** The error for a file that exists but is in the way. */
export function conflictError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('volume_file_conflict', `'${path}' ${reason}`)
}

/** The error for a path that is not allowed. */
export function invalidPathError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('invalid_volume_path', `'${path}': ${reason}`)
}

/** Whether an error has one of these codes. */
export function hasErrorCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}
