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
