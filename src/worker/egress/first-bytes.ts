import { NO_FIRST_BYTES, type FirstBytes } from '../../domain/network/judge-connection.ts'

/** How many bytes at the begin of a connection are read to find its name. */
export const FIRST_BYTES_MAX = 16 * 1024

const HANDSHAKE_RECORD = 0x16
const CLIENT_HELLO = 0x01
const RECORD_HEADER = 5
const MESSAGE_HEADER = 4
/** The most records of one message. Programs send it in one, or in a few. */
const RECORDS_MAX = 16
/** A name in more pieces than are read counts like one that is encrypted. */
const HIDDEN_NAME: FirstBytes = { form: 'tls', name: null, hidesName: true }
const EXTENSION = { serverName: 0, encryptedClientHello: 0xfe0d } as const
const HOST_NAME = 0

/** Reads the begin of a connection (TLS by RFC 8446 and RFC 6066, HTTP/1 by RFC 9112). Null: more bytes are needed. */
export function parseFirstBytes(bytes: Buffer): FirstBytes | null {
  if (bytes.length === 0) return null
  const parsed = bytes[0] === HANDSHAKE_RECORD ? parseHandshake(bytes) : parseRequestLine(bytes)
  return parsed ?? (bytes.length >= FIRST_BYTES_MAX ? NO_FIRST_BYTES : null)
}

/** The host of each request is read later, so a request line has no name here. */
function parseRequestLine(bytes: Buffer): FirstBytes | null {
  const end = bytes.indexOf('\r\n')
  const line = bytes.toString('latin1', 0, end === -1 ? bytes.length : end)
  if (/^[A-Za-z]{1,32} [\x21-\x7e]+ HTTP\/(?:1\.[01]|2\.0)$/.test(line))
    return { form: 'http', name: null, hidesName: false }
  return end === -1 && /^[A-Za-z]{1,32}(?: [\x20-\x7e]*)?\r?$/.test(line) ? null : NO_FIRST_BYTES
}

function parseHandshake(bytes: Buffer): FirstBytes | null {
  const parts: Buffer[] = []
  let known = 0
  let length = Infinity
  for (let at = 0; ;) {
    if (known >= length) return parseClientHello(Buffer.concat(parts).subarray(MESSAGE_HEADER, length))
    if (parts.length === RECORDS_MAX) return HIDDEN_NAME
    if (bytes.length < at + RECORD_HEADER) return null
    if (bytes[at] !== HANDSHAKE_RECORD || bytes[at + 1] !== 3) return NO_FIRST_BYTES
    const end = at + RECORD_HEADER + bytes.readUInt16BE(at + 3)
    if (end === at + RECORD_HEADER) return NO_FIRST_BYTES
    const part = bytes.subarray(at + RECORD_HEADER, end)
    if (known === 0 && part.length > 0 && part[0] !== CLIENT_HELLO) return NO_FIRST_BYTES
    parts.push(part)
    known += part.length
    if (length === Infinity && known >= MESSAGE_HEADER)
      length = MESSAGE_HEADER + Buffer.concat(parts, MESSAGE_HEADER).readUIntBE(1, 3)
    if (bytes.length < end && known < length) return null
    at = end
  }
}

function parseClientHello(hello: Buffer): FirstBytes {
  try {
    const reader = makeReader(hello)
    reader.skip(2 + 32)
    reader.skip(reader.number(1))
    reader.skip(reader.number(2))
    reader.skip(reader.number(1))
    if (reader.isAtEnd()) return { form: 'tls', name: null, hidesName: false }
    const extensions = makeReader(reader.take(reader.number(2)))
    let name: string | null = null
    let hidesName = false
    while (!extensions.isAtEnd()) {
      const type = extensions.number(2)
      const data = extensions.take(extensions.number(2))
      if (type === EXTENSION.encryptedClientHello) hidesName = true
      if (type === EXTENSION.serverName) name = parseServerName(data)
    }
    return { form: 'tls', name, hidesName }
  } catch (error) {
    // A server would refuse it too. Without a name it is judged by its address alone.
    if (error instanceof RangeError) return NO_FIRST_BYTES
    throw error
  }
}

function parseServerName(data: Buffer): string | null {
  const list = makeReader(data)
  list.skip(2)
  while (!list.isAtEnd()) {
    const type = list.number(1)
    const value = list.take(list.number(2))
    if (type === HOST_NAME) return value.toString('latin1').toLowerCase().replace(/\.$/, '')
  }
  return null
}

/** Reads numbers and parts of a message. Throws `RangeError` beyond its end. */
function makeReader(bytes: Buffer) {
  let at = 0
  const take = (length: number): Buffer => {
    if (at + length > bytes.length) throw new RangeError('the message is too short')
    at += length
    return bytes.subarray(at - length, at)
  }
  return {
    take,
    skip: (length: number): void => void take(length),
    number: (size: 1 | 2): number => take(size).readUIntBE(0, size),
    isAtEnd: (): boolean => at === bytes.length,
  }
}
