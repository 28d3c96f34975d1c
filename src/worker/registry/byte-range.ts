/** The first and the last byte of a part of a blob, as a `Range` header counts them. */
export type ByteRange = { readonly start: number; readonly end: number }

/**
 * Parses a `Range` header of one range (RFC 9110, 14.1.2). Null: the whole blob is asked for. Headers of several ranges, or of another unit,
 * ask for the whole too, which the standard allows.
 */
export function parseByteRange(header: string | undefined, sizeBytes: number): ByteRange | 'unsatisfiable' | null {
  const [matched, first = '', last = ''] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header ?? '') ?? []
  if (matched === undefined || (first === '' && last === '')) return null
  const start = first === '' ? Math.max(0, sizeBytes - Number(last)) : Number(first)
  const end = first === '' || last === '' ? sizeBytes - 1 : Math.min(Number(last), sizeBytes - 1)
  if (first !== '' && last !== '' && Number(last) < Number(first)) return null // an invalid range is ignored
  return start > end ? 'unsatisfiable' : { start, end }
}
