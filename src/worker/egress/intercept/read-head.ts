import type { Socket } from 'node:net'
import { peekBytes } from '../peek-bytes.ts'
import { RequestRefused } from '../request-refused.ts'

const MAX_HEAD = 64 * 1024
const LIMIT_MS = 60_000

/** Reads the head of a message, with its final empty line. The bytes after it stay in the socket. */
export async function readHead(socket: Socket): Promise<Buffer> {
  const parse = (bytes: Buffer): number | null => {
    const end = bytes.indexOf('\r\n\r\n')
    return end === -1 ? null : end + 4
  }
  const length = await peekBytes(socket, { parse, maxBytes: MAX_HEAD, limitMs: LIMIT_MS })
  if (length === null) throw new RequestRefused('a head that is too long or incomplete')
  const head = socket.read(length) as Buffer | null
  if (head === null) throw new Error('the connection was closed')
  return head
}
