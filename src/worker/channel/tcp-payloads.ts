import { CborError, decodeCbor } from './cbor.ts'
import { asInteger, asMap, asText } from './fields.ts'
import type { TcpTarget } from './guest.ts'

/** The longest host name that a connection is tried to; names of the DNS have 253 characters at most (RFC 1035). */
const MAX_HOST_CHARACTERS = 255
const U16 = { min: 0, max: 0xffff }

/** Reads `core.tcp.connect`. Throws `CborError` for what can't be the name or address of a host. */
export function readTcpTarget(payload: Uint8Array): TcpTarget {
  const map = asMap(decodeCbor(payload))
  const host = asText(map['host'])
  if (host === '' || host.length > MAX_HOST_CHARACTERS || host.includes('\0'))
    throw new CborError('the host is empty, too long or holds a NUL')
  return { host, port: asInteger(map['port'], U16) }
}
