import { connect, type Socket } from 'node:net'
import { waitUntil } from './wait.ts'

/** A connection on which a test writes any bytes, from an address of this machine that it chooses. */
export type RawConnection = {
  readonly socket: Socket
  /** Everything received, as latin1. `socket.pause()` stops reading. */
  readonly received: () => string
  readonly isClosed: () => boolean
}

/** A reply from a raw connection. */
export type RawReply = { readonly status: number; readonly head: string; readonly body: string }

/** Opens a connection. An error counts as its end. */
export function openConnection(port: number, localAddress = '127.0.0.1'): RawConnection {
  const socket = connect({ port, host: '127.0.0.1', localAddress })
  let text = ''
  let closed = false
  socket.setEncoding('latin1')
  socket.on('data', (piece: string) => {
    text += piece
  })
  socket.on('error', () => socket.destroy())
  socket.once('close', () => {
    closed = true
  })
  return { socket, received: () => text, isClosed: () => closed }
}

/** The first reply in the received text, after any 1xx replies. Null while that reply is incomplete. */
export function firstReply(text: string): RawReply | null {
  const end = text.indexOf('\r\n\r\n')
  if (end === -1) return null
  const head = text.slice(0, end)
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(head)?.[1])
  if (status < 200) return firstReply(text.slice(end + 4))
  const length = Number(/^content-length: (\d+)$/im.exec(head)?.[1] ?? 0)
  return text.length < end + 4 + length ? null : { status, head, body: text.slice(end + 4, end + 4 + length) }
}

/** Sends bytes and waits for a reply, then closes the connection. Null if the connection ends without one. */
export async function exchangeRaw(
  port: number,
  bytes: string | Buffer,
  localAddress?: string,
): Promise<RawReply | null> {
  const connection = openConnection(port, localAddress)
  connection.socket.write(bytes)
  const reply = await waitUntil(
    () => firstReply(connection.received()) ?? (connection.isClosed() ? 'closed' : undefined),
  )
  connection.socket.destroy()
  return reply === 'closed' ? null : reply
}
