import type { Readable } from 'node:stream'

/**
 * The files of a volume, as the public client's routes need them. The worker that holds the volume implements this on its folder.
 * The control plane calls it over a stream of kind `volume`: HTTP/1.1 on which the worker is the server, although the worker dialled.
 * The requests are those of `VOLUME_ROUTES`.
 *
 * A path is relative to the volume's root, with or without a leading slash. `invalid_volume_path` refuses `..`, a second leading
 * slash, NUL, and a symlink that leads out of the volume.
 */
export interface VolumeFiles {
  /** The files and folders of a folder, sorted by path. */
  list(path: string): Promise<readonly VolumeFile[]>
  stat(path: string): Promise<VolumeFile>
  /** Whether a file or folder exists. A bad path is refused, as everywhere. */
  exists(path: string): Promise<boolean>
  /** The content of a regular file, streamed. */
  read(path: string): Promise<{ readonly sizeBytes: number; readonly content: Readable }>
  /** Writes a file, and creates missing folders. It replaces an existing file when all of the content has arrived. */
  write(path: string, content: Readable): Promise<{ readonly sizeBytes: number }>
  /** Creates a folder and those above it. Succeeds if it exists. */
  mkdir(path: string): Promise<void>
  /** Copies a file or a folder, and creates the folders above the target. */
  copy(from: string, to: string): Promise<void>
  /** Moves a file or a folder, and creates the folders above the target. */
  rename(from: string, to: string): Promise<void>
  /** Removes a file, or with `isRecursive` a folder and everything in it. */
  remove(path: string, options: { readonly isRecursive: boolean }): Promise<void>
}

/** A file or folder as clients see it. A symlink shows as its target, and other kinds are hidden. */
export type VolumeFile = {
  /** From the volume's root, with a leading slash. */
  readonly path: string
  readonly kind: 'file' | 'directory'
  readonly size: number
  /** `st_mode`, type bits included, as the public SDK shows it. */
  readonly mode: number
  /** As a sandbox that mounts the volume sees them. */
  readonly uid: number
  readonly gid: number
  readonly readonly: boolean
  /** ISO 8601. */
  readonly accessed_at: string
  readonly modified_at: string
  readonly created_at: string
}

/** Why a file operation was refused. These are also codes of `PROBLEMS`. */
export const VOLUME_FILE_PROBLEMS = [
  'volume_file_not_found',
  'invalid_volume_path',
  'volume_file_conflict',
  'quota_exceeded',
] as const
export type VolumeFileProblem = (typeof VOLUME_FILE_PROBLEMS)[number]

/** A refusal of a file operation. Its message is for the client, and names no path of the host. */
export class VolumeFileError extends Error {
  readonly code: VolumeFileProblem
  constructor(code: VolumeFileProblem, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }
}

/**
 * The requests on a stream of kind `volume`. Paths are in the headers `x-msb-file-path` and `x-msb-file-target`, in UTF-8 as
 * base64url. Replies are JSON, except that of `read`. A refusal has status 422 and the body `{code, message}`, a fault 500.
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
  /** With the header `x-msb-file-recursive: true|false`. */
  remove: { method: 'DELETE', url: '/' },
} as const

/** The header with the path of a request, on the public routes and on a worker's stream. */
export const VOLUME_PATH_HEADER = 'x-msb-file-path'
/** The target of a copy or a move, on a worker's stream only. The public routes have it in the body. */
export const VOLUME_TARGET_HEADER = 'x-msb-file-target'
/** Whether to remove a folder with everything in it: `true` or `false`. */
export const VOLUME_RECURSIVE_HEADER = 'x-msb-file-recursive'

/** Encodes a path for these headers: base64url of UTF-8 without padding, because paths may contain any character. */
export function encodeVolumePath(path: string): string {
  return Buffer.from(path, 'utf8').toString('base64url')
}

/** Decodes a path of these headers. Null unless `encodeVolumePath` gives the same text for it. */
export function decodeVolumePath(header: string): string | null {
  const bytes = Buffer.from(header, 'base64url')
  const path = bytes.toString('utf8')
  return encodeVolumePath(path) === header ? path : null
}
