// The replies of `guest/volume.pl`, which documents them.
import type { Readable } from 'node:stream'
import { finished } from 'node:stream/promises'
import { getSystemErrorName } from 'node:util'
import type { GuestProcess } from '../../../channel/guest.ts'
import { conflictError, invalidPathError, notFoundError, translateErrors } from '../../../volumes/file-errors.ts'

/** The paths of an operation as the client wrote them. */
export type AskedPaths = readonly [path: string, target?: string]

/** How many bytes of error output are kept for the log. */
const COMPLAINT_MAX_BYTES = 4_096
const REFUSAL_BYTES = 6
const SIGKILL = 9

/**
 * Reads the reply of an operation whose input is over or is being sent. Calls `onResult` with the pieces of its result. Rejects with
 * `VolumeFileError`, or with an error of this machine, also if the result ended early.
 */
export async function readReply(
  { stdout, stderr, exited }: GuestProcess,
  paths: AskedPaths,
  onResult: (piece: Buffer) => void,
): Promise<void> {
  let first: string | null = null
  const refusal: Buffer[] = []
  const complaint = readComplaint(stderr)
  stdout.on('data', (piece: Buffer) => {
    const rest = first === null ? piece.subarray(1) : piece
    first ??= piece.toString('latin1', 0, 1)
    if (first === '+') onResult(rest)
    else refusal.push(rest)
  })
  await finished(stdout, { writable: false })
  const code = await exited
  if (first === '!') await refuse(Buffer.concat(refusal), paths)
  if (first !== '+' || code !== 0)
    throw new Error(`the operation ended early, with code ${String(code)}: ${complaint.join('').trim()}`)
}

/**
 * Reads the reply of an operation until `take` wants no more, and then ends the process. Resolves with whether the
 * result was read whole. Rejects as `readReply` does.
 */
export async function readReplyWhile(
  process: GuestProcess,
  paths: AskedPaths,
  take: (piece: Buffer) => boolean,
): Promise<boolean> {
  let isWhole = true
  try {
    await readReply(process, paths, (piece) => {
      if (!isWhole || take(piece)) return
      isWhole = false
      process.signal(SIGKILL)
    })
  } catch (error) {
    if (isWhole) throw error
  }
  return isWhole
}

/** Throws what a refusal says: all but its first character. */
export async function refuse(fields: Buffer, [path, target = path]: AskedPaths): Promise<never> {
  if (fields.length < REFUSAL_BYTES) throw new Error('the operation ended with a broken reply')
  const about = fields.readUInt8(0) === 0 ? path : target
  const text = fields.toString('utf8', REFUSAL_BYTES)
  switch (fields.toString('latin1', 1, 2)) {
    case 'n':
      throw notFoundError(about)
    case 'i':
      throw invalidPathError(about, text)
    case 'c':
      throw conflictError(about, text)
    case 'w':
      throw conflictError(target, `lies within '${path}'`)
    case 'e':
      return await translateErrors(about, () => Promise.reject(kernelError(about, fields.readUInt32BE(2))))
    default:
      throw new Error(`the operation failed: ${text}`)
  }
}

/** Linux's numbers of errors that say that a file belongs to somebody else. The Pod has no root who could pass over that. */
const FORBIDDEN: readonly number[] = [1, 13] // EPERM, EACCES

function kernelError(path: string, errno: number): Error {
  if (FORBIDDEN.includes(errno))
    return conflictError(path, 'belongs to another user, who keeps it from the group of the volume')
  return Object.assign(new Error(`the kernel refused: ${String(errno)}`), {
    code: getSystemErrorName(-errno),
    errno: -errno,
  })
}

/** Collects the beginning of a process's error output. */
export function readComplaint(stderr: Readable | null): readonly string[] {
  const pieces: string[] = []
  let sizeBytes = 0
  stderr?.on('data', (piece: Buffer) => {
    sizeBytes += piece.length
    if (sizeBytes <= COMPLAINT_MAX_BYTES) pieces.push(piece.toString('utf8'))
  })
  stderr?.on('error', () => undefined)
  return pieces
}
