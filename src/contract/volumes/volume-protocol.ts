import type { Readable } from 'node:stream'

/**
 * The files of a volume, as the public client's routes ask for them (client traffic, section 2). The worker that holds
 * the volume implements this on its folder; the control plane speaks it over a ticketed stream: HTTP/1.1 in which the
 * worker, which dialled, is the server. The requests are those of `VOLUME_ROUTES`.
 *
 * A path is relative to the volume's root; one leading slash means the root, as in the public SDK. `..`, a further leading
 * slash, NUL, and whatever leads out of the volume by a symlink is refused with `invalid_volume_path`.
 */
export interface VolumeFiles {
  /** What lies in a folder, sorted by path. */
  list(path: string): Promise<readonly VolumeFile[]>
  stat(path: string): Promise<VolumeFile>
  /** False for what is not there; a path that may not be asked for is refused. */
  exists(path: string): Promise<boolean>
  /** The content of a regular file, streamed. */
  read(path: string): Promise<{ readonly sizeBytes: number; readonly content: Readable }>
  /** Writes a file in place of what was there, its folders made as needed. The file is whole or the old one stays. */
  write(path: string, content: Readable): Promise<{ readonly sizeBytes: number }>
  /** Makes a folder and those above it; one that is there succeeds. */
  mkdir(path: string): Promise<void>
  /** Copies a file or a folder; folders above the target are made. */
  copy(from: string, to: string): Promise<void>
  /** Moves a file or a folder; folders above the target are made. */
  rename(from: string, to: string): Promise<void>
  /** Removes a file; with `isRecursive` a folder and all in it. */
  remove(path: string, options: { readonly isRecursive: boolean }): Promise<void>
}

/** A file or folder as clients see it; other kinds are hidden, and a symlink shows as what it leads to. */
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

/** Why a file operation was refused; these are also codes of the catalogue of problems. */
export const VOLUME_FILE_PROBLEMS = [
  'volume_file_not_found',
  'invalid_volume_path',
  'volume_file_conflict',
  'quota_exceeded',
] as const
export type VolumeFileProblem = (typeof VOLUME_FILE_PROBLEMS)[number]

/** A refusal of a file operation. The message is for the client; it never tells a path of the host. */
export class VolumeFileError extends Error {
  readonly code: VolumeFileProblem
  constructor(code: VolumeFileProblem, message: string, cause?: unknown) {
    super(message, { cause })
    this.code = code
  }
}

/**
 * The requests on a stream of kind `volume`. Paths travel in the headers `x-msb-file-path` and `x-msb-file-target` as
 * base64url of UTF-8. Replies are JSON but for `read`; a refusal has status 422 and the body `{code, message}`, a fault 500.
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

/** Headers in which a volume's paths travel, on the public routes and on a worker's stream (client traffic, section 2). */
export const VOLUME_PATH_HEADER = 'x-msb-file-path'
/** Where a copy or a move leads; on a worker's stream only, the public routes have it in the body. */
export const VOLUME_TARGET_HEADER = 'x-msb-file-target'
/** `true` or `false`. */
export const VOLUME_RECURSIVE_HEADER = 'x-msb-file-recursive'

/** A path as these headers carry it: base64url of UTF-8 without padding, for paths hold what headers can't. */
export function encodeVolumePath(path: string): string {
  return Buffer.from(path, 'utf8').toString('base64url')
}

/** The path of a header, or null when it is not exactly what `encodeVolumePath` makes. */
export function decodeVolumePath(header: string): string | null {
  const bytes = Buffer.from(header, 'base64url')
  const path = bytes.toString('utf8')
  return encodeVolumePath(path) === header ? path : null
}
