import type { Duplex } from 'node:stream'
import type { Channel } from './channel.ts'
import { TcpFailure } from './guest.ts'
import type { TcpTarget } from './guest.ts'
import { makeInbox } from './inbox.ts'
import { sendStream } from './pump.ts'

/** One connection of a client into the sandbox, from its request to its terminal message. */
export type TcpSession = {
  /** Data for the other end. Nothing happens after `end`. */
  write(data: Buffer): void
  /** The client sends nothing more: told to the other end after all data. It may still answer. */
  end(): void
  /** The client wants no more of it or is gone: the connection is cut, and no message is owed. */
  abort(): void
  /** Resolves after the terminal message was queued, or after `cut` once nothing of the connection is left. */
  readonly over: Promise<void>
}

/** The longest that a connection may take to come about, name look-up included; that of the genuine agent (section 9). */
const CONNECT_LIMIT_MS = 30_000

/**
 * Connects and carries both directions, each of which ends by itself. Data that arrives before the connection is there
 * is kept, within a limit. The terminal message comes when both directions have ended, or when the connection broke.
 */
export function startTcpSession(channel: Channel, id: number, target: TcpTarget): TcpSession {
  const abort = new AbortController()
  const inbox = makeInbox<Duplex>(channel)

  const run = async (): Promise<void> => {
    try {
      const stream = await connect(channel, target, abort.signal)
      if (abort.signal.aborted) {
        await cut(stream)
        return
      }
      const ended = closeOutcome(stream)
      abort.signal.addEventListener('abort', () => stream.destroy(), { once: true })
      channel.send(id, 'core.tcp.connected', {})
      inbox.open(stream)
      await sendStream(channel, stream, (data) => {
        channel.sendData(id, 'core.tcp.data', data)
      })
      if (stream.readableEnded && !abort.signal.aborted) channel.send(id, 'core.tcp.eof', {})
      const failure = await ended
      if (abort.signal.aborted) return
      if (failure !== null) throw failure
      channel.send(id, 'core.tcp.closed', {})
    } catch (error) {
      if (abort.signal.aborted) return
      if (!(error instanceof TcpFailure)) channel.log.error({ err: error }, 'a connection into a sandbox failed')
      channel.send(id, 'core.tcp.failed', { error: describeFailure(error, target) })
    } finally {
      inbox.close()
    }
  }

  return {
    over: run(),
    write(data) {
      inbox.deliver(data.length, (stream) => {
        if (!stream.destroyed && !stream.writableEnded) inbox.write(stream, data)
      })
    },
    end() {
      inbox.deliver(0, (stream) => {
        if (!stream.destroyed && !stream.writableEnded) stream.end()
      })
    },
    abort() {
      inbox.close()
      abort.abort(new TcpFailure('the client closed the connection'))
    },
  }
}

async function connect(channel: Channel, target: TcpTarget, signal: AbortSignal): Promise<Duplex> {
  const limit = new AbortController()
  const over = new AbortController()
  const timer = channel.clock.sleep(CONNECT_LIMIT_MS, over.signal).then(
    () => {
      limit.abort(new TcpFailure(`connect ${target.host}:${String(target.port)} timed out`))
    },
    (error: unknown) => {
      if (!over.signal.aborted) throw error
    },
  )
  try {
    return await channel.guest.connect(target, AbortSignal.any([signal, limit.signal]))
  } finally {
    over.abort()
    await timer
  }
}

/** Resolves once a stream has let go of everything: null, or with what it broke of. */
function closeOutcome(stream: Duplex): Promise<Error | null> {
  return new Promise((resolve) => {
    let failure: Error | null = null
    stream.on('error', (error) => {
      failure = error
    })
    stream.once('close', () => {
      resolve(failure)
    })
  })
}

async function cut(stream: Duplex): Promise<void> {
  const ended = closeOutcome(stream)
  stream.destroy()
  await ended
}

function describeFailure(error: unknown, { host, port }: TcpTarget): string {
  return error instanceof TcpFailure ? error.message : `connect ${host}:${String(port)}: the connection failed`
}
