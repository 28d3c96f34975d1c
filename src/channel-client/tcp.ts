import { Duplex } from 'node:stream'
import { decodeData } from '../channel/envelope.ts'
import { type AgentMessage, type Connection, type Session, fieldsOf, refusalOf } from './connection.ts'
import { makeIntake } from './intake.ts'

/**
 * A TCP connection into a sandbox that could not be opened, or that broke. `refused`: the host answered that nothing
 * listens on the port.
 */
export class ConnectFailure extends Error {
  readonly kind: 'refused' | 'other'
  constructor(message: string) {
    super(message)
    this.kind = errnoOf(message) === ECONNREFUSED ? 'refused' : 'other'
  }
}

const ECONNREFUSED = 111

/** The error number in a text of the agent protocol, which has no field for it: `… (os error 2)`. */
export function errnoOf(text: string): number | null {
  const found = /\(os error (\d+)\)/.exec(text)?.[1]
  return found === undefined ? null : Number(found)
}

/** The addresses of a sandbox itself. A server may listen on only one of them. */
export const LOOPBACKS = ['127.0.0.1', '::1'] as const

/**
 * Opens a TCP connection inside a sandbox, to a host that the sandbox can reach. Without a host, it connects to the
 * sandbox itself. Each direction of the stream ends independently. Rejects with `ConnectFailure` or `ChannelLost`.
 */
export async function connectTcp(
  connection: Connection,
  { port, host }: { readonly port: number; readonly host: string | null },
  signal?: AbortSignal,
): Promise<Duplex> {
  if (host !== null) return await dial(connection, { port, host }, signal)
  try {
    return await dial(connection, { port, host: LOOPBACKS[0] }, signal)
  } catch (error) {
    if (!(error instanceof ConnectFailure) || error.kind !== 'refused') throw error
    return await dial(connection, { port, host: LOOPBACKS[1] }, signal).catch((second: unknown) => {
      throw second instanceof ConnectFailure ? error : second
    })
  }
}

/**
 * The stream's buffers. The agent reads pieces of 64 KiB. What is unread beyond the buffer counts for the channel (`intake.ts`).
 */
const READ_BUFFER_BYTES = 64 * 1024
const WRITE_BUFFER_BYTES = 256 * 1024

function dial(
  connection: Connection,
  target: { readonly port: number; readonly host: string },
  signal?: AbortSignal,
): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    let isConnected = false
    let isOver = false
    let hasSentEnd = false
    const intake = makeIntake(connection)
    const onMessage = (message: AgentMessage): void => {
      isOver = isOver || message.isLast
      if (message.type === 'core.tcp.connected') {
        isConnected = true
        signal?.removeEventListener('abort', onAbort)
        resolve(stream)
      } else if (message.type === 'core.tcp.data') intake.push(stream, decodeData(message.payload))
      else if (message.type === 'core.tcp.eof') endReading()
      else if (message.type === 'core.tcp.closed') {
        endReading()
        stream.end()
      } else if (message.isLast) fail(new ConnectFailure(refusalOf(message) ?? String(fieldsOf(message)['error'])))
    }
    let hasEnded = false
    const endReading = (): void => {
      if (!hasEnded && !stream.destroyed) stream.push(null)
      hasEnded = true
    }
    const fail = (error: Error): void => {
      signal?.removeEventListener('abort', onAbort)
      if (isConnected) stream.destroy(error)
      else {
        stream.destroy()
        reject(error)
      }
    }
    const session: Session = connection.start(
      { type: 'core.tcp.connect', payload: target },
      { onMessage, onLost: fail },
    )
    const stream = new Duplex({
      allowHalfOpen: true,
      readableHighWaterMark: READ_BUFFER_BYTES,
      writableHighWaterMark: WRITE_BUFFER_BYTES,
      read() {
        intake.resume()
      },
      write(data: Buffer, _encoding, done) {
        session.sendData('core.tcp.data', data, done)
      },
      final(done) {
        session.send('core.tcp.eof', {})
        hasSentEnd = true
        done()
      },
      destroy(error, done) {
        // A stream whose two sides have ended is destroyed too. A `close` then would make the agent drop what it still has to write.
        const hasEndedWell = hasEnded && hasSentEnd && error === null
        if (!isOver && !hasEndedWell) session.send('core.tcp.close', {})
        session.forget()
        intake.resume()
        done(error)
      },
    })
    stream.on('error', () => {
      // a connection may break before its user listens; `close` and reading tell of it too
    })
    const onAbort = (): void => {
      fail(signal?.reason instanceof Error ? signal.reason : new Error('aborted'))
    }
    if (signal?.aborted === true) onAbort()
    else signal?.addEventListener('abort', onAbort, { once: true })
  })
}
