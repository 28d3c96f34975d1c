import type { Readable } from 'node:stream'

/**
 * The file operations on a volume that the public API needs. The worker that stores the volume implements this
 * interface on the volume's folder. The control plane calls it over a stream of kind `volume`. The stream carries
 * HTTP/1.1: the worker is the server, although the worker dialled the connection. `VOLUME_ROUTES` lists the requests.
 *
 * A path is relative to the volume's root, with or without a leading slash. A path with `..`, a second leading slash,
 * NUL, or a symlink that leads out of the volume is refused with `invalid_volume_path`.
 */
export interface VolumeFiles {
  /** Lists the files and folders of a folder, sorted by path. */
  list(path: string): Promise<readonly VolumeFile[]>
  stat(path: string): Promise<VolumeFile>
  /** Whether a file or folder exists. An invalid path is refused, as in every operation. */
  exists(path: string): Promise<boolean>
  /** Reads the content of a regular file as a stream. */
  read(path: string): Promise<{ readonly sizeBytes: number; readonly content: Readable }>
  /**
   * Writes a file, and creates missing folders. An existing file is replaced only after all of the content has arrived.
   */
  write(path: string, content: Readable): Promise<{ readonly sizeBytes: number }>
  /** Creates a folder and the missing folders above it. Succeeds if the folder exists. */
  mkdir(path: string): Promise<void>
  /** Copies a file or a folder, and creates the missing folders above the target. */
  copy(from: string, to: string): Promise<void>
  /** Moves a file or a folder, and creates the missing folders above the target. */
  rename(from: string, to: string): Promise<void>
  /** Removes a file, or with `isRecursive` a folder and everything in it. */
  remove(path: string, options: { readonly isRecursive: boolean }): Promise<void>
}

/** A file or folder as clients see it. A symlink is shown as its target. Files of other kinds are hidden. */
export type VolumeFile = {
  /** The path from the volume's root, with a leading slash. */
  readonly path: string
  readonly kind: 'file' | 'directory'
  readonly size: number
  /** The mode as in `st_mode`, including the type bits, because the public SDK expects that. */
  readonly mode: number
  /** The user and group id that a sandbox sees when it mounts the volume. */
  readonly uid: number
  readonly gid: number
  readonly readonly: boolean
  /** Times in ISO 8601. */
  readonly accessed_at: string
  readonly modified_at: string
  readonly created_at: string
}

/** The codes of refused file operations. They are also codes of `PROBLEMS`. */
export const VOLUME_FILE_PROBLEMS = [
  'volume_file_not_found',
  'invalid_volume_path',
  'volume_file_conflict',
  'quota_exceeded',
  'unavailable',
] as const
export type VolumeFileProblem = (typeof VOLUME_FILE_PROBLEMS)[number]

/** The refusal of a file operation. Clients see its message, so the message contains no path of the host. */
export class VolumeFileError extends Error {
  readonly code: VolumeFileProblem
  constructor(code: VolumeFileProblem, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }
}

/**
 * The requests on a stream of kind `volume`. The headers `x-msb-file-path` and `x-msb-file-target` contain paths, in
 * UTF-8 as base64url. Replies are JSON, except the reply of `read`. A refusal has status 422 and the body `{code,
 * message}`. An unexpected failure has status 500.
 *
 * A `write` has the header `upgrade: content`, and the content follows the request in frames: the number of bytes (8 bytes, big-endian),
 * and then the bytes. The number 0 ends it. The reply comes as for other requests, and may come earlier. An HTTP parser would copy each
 * piece of a body.
 */
export const VOLUME_ROUTES = {
  list: { method: 'GET', url: '/list' },
  stat: { method: 'GET', url: '/stat' },
  exists: { method: 'GET', url: '/exists' },
  read: { method: 'GET', url: '/content' },
  write: { method: 'PUT', url: '/content' },
  mkdir: { method: 'POST', url: '/mkdir' },
  copy: { method: 'POST', url: '/copy' },
  rename: { method: 'POST', url: '/rename' },
  /** Needs the header `x-msb-file-recursive: true|false`. */
  remove: { method: 'DELETE', url: '/' },
} as const

/** The header `upgrade` of a `write`. */
export const CONTENT_UPGRADE = 'content'
/** The length of the number at the beginning of a frame. */
export const FRAME_HEAD_BYTES = 8

/** The beginning of a frame of content. */
export function frameHead(bytes: number): Buffer {
  const head = Buffer.alloc(FRAME_HEAD_BYTES)
  head.writeBigUInt64BE(BigInt(bytes))
  return head
}

/** The header with the path of a request, in the public API and on a worker's stream. */
export const VOLUME_PATH_HEADER = 'x-msb-file-path'
/**
 * The header with the target of a copy or a move, on a worker's stream only. In the public API the target is in the
 * body.
 */
export const VOLUME_TARGET_HEADER = 'x-msb-file-target'
/** The header that says whether to remove a folder with its content: `true` or `false`. */
export const VOLUME_RECURSIVE_HEADER = 'x-msb-file-recursive'

/**
 * Encodes a path for the headers above, as base64url of UTF-8 without padding. It is encoded because a path may contain
 * characters that a header may not.
 */
export function encodeVolumePath(path: string): string {
  return Buffer.from(path, 'utf8').toString('base64url')
}

/** Decodes a path from the headers above. Returns null for any text that `encodeVolumePath` does not return. */
export function decodeVolumePath(header: string): string | null {
  const bytes = Buffer.from(header, 'base64url')
  const path = bytes.toString('utf8')
  return encodeVolumePath(path) === header ? path : null
}
