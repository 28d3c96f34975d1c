import type { Socket } from 'node:net'
import { NO_FIRST_BYTES, type FirstBytes } from '../../domain/network/judge-connection.ts'
import { FIRST_BYTES_MAX, parseFirstBytes } from './first-bytes.ts'
import { peekBytes } from './peek-bytes.ts'

/** How long a connection may be silent before it counts as one that names nothing. */
export const FIRST_BYTES_LIMIT_MS = 5_000

/** Reads what the first bytes of a connection show. A client that is silent for `limitMs`, or ends before, shows nothing. */
export async function readFirstBytes(socket: Socket, limitMs = FIRST_BYTES_LIMIT_MS): Promise<FirstBytes> {
  return (await peekBytes(socket, { parse: parseFirstBytes, maxBytes: FIRST_BYTES_MAX, limitMs })) ?? NO_FIRST_BYTES
}
