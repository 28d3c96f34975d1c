/** What a client speaks on a connection whose requests are read. */
export type ClientProtocol = 'http1' | 'connect' | 'http2' | 'opaque'

const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
const CONNECT = Buffer.from('CONNECT ')
export const PREFACE_BYTES = PREFACE.length

/** Tells the protocol by its first bytes. Null: it takes more of them. Whatever could be HTTP counts as HTTP. */
export function detectProtocol(bytes: Buffer): ClientProtocol | null {
  const [first] = bytes
  if (first === undefined) return null
  for (const [prefix, protocol] of [
    [PREFACE, 'http2'],
    [CONNECT, 'connect'],
  ] as const) {
    const length = Math.min(bytes.length, prefix.length)
    if (bytes.compare(prefix, 0, length, 0, length) === 0) return length === prefix.length ? protocol : null
  }
  const isText = (first >= 0x20 && first < 0x7f) || first === 0x0a || first === 0x0d
  return isText ? 'http1' : 'opaque'
}
