import { VolumeFileError, type VolumeFileProblem } from '../../contract/volumes/volume-protocol.ts'

/** What the kernel's refusals mean to a client. What is missing here is a fault of this machine. */
const ERRNO_MEANINGS: Readonly<Record<string, { readonly code: VolumeFileProblem; readonly reason: string }>> = {
  ENOENT: { code: 'volume_file_not_found', reason: 'is not there' },
  ENOTDIR: { code: 'volume_file_conflict', reason: 'is not a folder, or leads through what is none' },
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
 * Does a step on the file system, its refusals told as `VolumeFileError`s that name `path` (as the client wrote it) and
 * no path of the host. Faults of this machine are thrown as they are.
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

/** Linux's number of EDQUOT; Node knows no name for it (`Unknown system error -122`). */
const EDQUOT = 122

/** Whether the kernel refused for want of room: of the file system, or below a cap. */
export function isOutOfSpace(error: unknown): boolean {
  return hasErrorCode(error, 'ENOSPC') || (error instanceof Error && 'errno' in error && error.errno === -EDQUOT)
}

/** The refusal of what is not there, or is nothing that clients are shown. */
export function notFoundError(path: string): VolumeFileError {
  return new VolumeFileError('volume_file_not_found', `'${path}' is not there`)
}

/** The refusal of what is there but stands in the way. */
export function conflictError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('volume_file_conflict', `'${path}' ${reason}`)
}

/** The refusal of a path that may not be asked for. */
export function invalidPathError(path: string, reason: string): VolumeFileError {
  return new VolumeFileError('invalid_volume_path', `'${path}': ${reason}`)
}

/** Whether the kernel refused with one of these codes. */
export function hasErrorCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}
