import type { Duplex } from 'node:stream'
import { CborError, asMap, decodeCbor } from '../channel/cbor.ts'
import { decodeEnvelope, decodingPieces, encodeData, encodeMessage, MAX_DATA_BYTES } from '../channel/envelope.ts'
import { FLAG_TERMINAL, type Frame, makeFrameReader } from '../channel/frame.ts'
import type { ClientMessageType } from '../channel/messages.ts'
import type { ChannelEnd } from '../contract/sandboxes/channel-ends.ts'
import { makeStreamHolds } from '../lib/streams/stream-holds.ts'
import type { Pace } from '../lib/turns/piece-pacer.ts'
import { takeAtPace } from '../lib/turns/take-at-pace.ts'

export type Payload = Readonly<Record<string, unknown>>

/** A message of the agent, within a session. `payload` is not decoded yet; `isLast` ends the session. */
export type AgentMessage = { readonly type: string; readonly payload: Uint8Array; readonly isLast: boolean }

/** The client's side of one command, file operation or TCP connection. */
export type Session = {
  send(type: ClientMessageType, payload: Payload): void
  /** Sends a message. Resolves when more may follow, or when the channel is gone. */
  sendInTurn(type: ClientMessageType, payload: Payload): Promise<void>
  /** Sends `{data}` messages. Calls `sent` when more may follow, or with an error when the channel is gone. */
  sendData(type: ClientMessageType, data: Buffer, sent: (error?: Error | null) => void): void
  /** Forgets the session: further messages of the agent for it are dropped. */
  forget(): void
}

export type SessionHandlers = {
  onMessage(message: AgentMessage): void
  /** Called once if the channel ends before the session. */
  onLost(error: ChannelLost): void
}

/** The channel ended while something on it was in use. */
export class ChannelLost extends Error {
  readonly why: ChannelEnd
  constructor(why: ChannelEnd) {
    super(`the channel to the sandbox ended: ${why}`)
    this.why = why
  }
}

/** Many sessions over one channel. The agent protocol has no flow control for single sessions. */
export type Connection = {
  /** Starts a session by sending its first message. On a closed channel, `onLost` is called at once. */
  start(first: { readonly type: ClientMessageType; readonly payload: Payload }, handlers: SessionHandlers): Session
  /** Stops reading from the agent until the returned function is called. This delays all sessions of the channel. */
  pauseInput(): () => void
  /** The number of bytes that one session may keep unread before it must call `pauseInput`. */
  readonly sessionBufferBytes: number
  /** Resolves when the agent is ready. Rejects with `ChannelLost`. */
  readonly ready: Promise<void>
  /** Resolves with the reason when the channel has ended. */
  readonly closed: Promise<ChannelEnd>
  /** Ends the channel. Only the first reason counts. */
  end(why: ChannelEnd): void
}

/** The size of the id range, which the agent sends before its first frame. */
const PROLOGUE_BYTES = 8
/** What all sessions together may keep unread, and what a single one may. */
const MAX_UNREAD_BYTES = 32 * 1024 * 1024
const MAX_SESSION_UNREAD_BYTES = 4 * 1024 * 1024

export type AgentOptions = {
  /** Tells why the stream was closed by the other side. */
  readonly whyClosed: () => ChannelEnd
  /** How many frames of the agent are taken in a turn of the event loop. */
  readonly pace: Pace
}

/** Speaks the agent protocol over a byte stream. */
export function connectAgent(stream: Duplex, { whyClosed, pace }: AgentOptions): Connection {
  const live = new Map<number, SessionHandlers>()
  const reader = makeFrameReader()
  const ready = Promise.withResolvers<void>()
  const closed = Promise.withResolvers<ChannelEnd>()
  let waiting: ((error?: Error | null) => void)[] = []
  let prologue = Buffer.alloc(0)
  let isReady = false
  let lost: ChannelLost | null = null
  let lastId = 0
  ready.promise.catch(() => {
    // `closed` reports the same
  })

  const end = (why: ChannelEnd): void => {
    if (lost !== null) return
    const error = new ChannelLost(why)
    lost = error
    stream.destroy()
    ready.reject(error)
    const sessions = [...live.values()]
    live.clear()
    for (const sent of waiting.splice(0)) sent(error)
    for (const session of sessions) session.onLost(error)
    closed.resolve(why)
  }

  /** The next free id of the range that the agent assigned. Ids are reused only after the range is used up. */
  const newId = (): number => {
    const min = Math.max(1, prologue.readUInt32BE(0))
    const max = prologue.readUInt32BE(4)
    for (let tried = 0; tried <= live.size; tried += 1) {
      lastId = lastId + 1 < min || lastId + 1 >= max ? min : lastId + 1
      if (!live.has(lastId)) return lastId
    }
    throw new Error('the agent assigned fewer ids than there are sessions')
  }

  const receive = (frame: Frame): void => {
    const { type, payload } = decodeEnvelope(frame.body)
    if (!isReady) {
      if (type !== 'core.ready') throw new CborError(`core.ready was expected, not ${type}`)
      isReady = true
      ready.resolve()
      return
    }
    const session = live.get(frame.id)
    if (session === undefined) return
    const isLast = (frame.flags & FLAG_TERMINAL) !== 0
    if (isLast) live.delete(frame.id)
    session.onMessage({ type, payload, isLast })
  }

  const pauseInput = makeStreamHolds(stream)
  const taking = {
    pace,
    take(frame: Frame) {
      if (lost === null) receive(frame)
      return decodingPieces(frame.body)
    },
    hold: pauseInput,
    isOver: () => lost !== null,
    onFailure() {
      end('channel_failed')
    },
  }
  stream.on('data', (piece: Buffer) => {
    const missing = PROLOGUE_BYTES - prologue.length
    if (missing > 0) prologue = Buffer.concat([prologue, piece.subarray(0, missing)])
    takeAtPace(reader.push(piece.subarray(Math.max(0, missing))), taking)
  })
  stream.on('drain', () => {
    const callbacks = waiting
    waiting = []
    for (const sent of callbacks) sent()
  })
  stream.on('error', () => {
    end(whyClosed())
  })
  stream.on('close', () => {
    end(whyClosed())
  })
  stream.on('end', () => {
    setImmediate(() => {
      end(whyClosed())
    })
  })

  return {
    ready: ready.promise,
    closed: closed.promise,
    end,
    get sessionBufferBytes() {
      return Math.min(MAX_SESSION_UNREAD_BYTES, MAX_UNREAD_BYTES / Math.max(1, live.size))
    },
    pauseInput,
    start(first, handlers) {
      if (lost !== null) {
        const error = lost
        queueMicrotask(() => {
          handlers.onLost(error)
        })
        return {
          send: () => undefined,
          sendInTurn: () => Promise.resolve(),
          sendData: (_type, _data, sent) => sent(error),
          forget: () => undefined,
        }
      }
      const id = newId()
      live.set(id, handlers)
      const isLive = (): boolean => lost === null && live.get(id) === handlers
      stream.write(encodeMessage(id, first.type, first.payload))
      return {
        send(type, payload) {
          if (isLive()) stream.write(encodeMessage(id, type, payload))
        },
        sendInTurn(type, payload) {
          return new Promise((resolve) => {
            if (isLive()) stream.write(encodeMessage(id, type, payload))
            if (isLive() && stream.writableNeedDrain) waiting.push(() => resolve())
            else resolve()
          })
        },
        sendData(type, data, sent) {
          if (!isLive()) {
            sent(lost)
            return
          }
          for (let at = 0; at < data.length; at += MAX_DATA_BYTES) {
            for (const buffer of encodeData(id, type, data.subarray(at, at + MAX_DATA_BYTES))) stream.write(buffer)
          }
          if (stream.writableNeedDrain) waiting.push(sent)
          else sent()
        },
        forget() {
          if (live.get(id) === handlers) live.delete(id)
        },
      }
    },
  }
}

/** The fields of a message. Throws `CborError`. */
export function fieldsOf(message: AgentMessage): Payload {
  return asMap(decodeCbor(message.payload))
}

/** The text of a `core.error`, with which an agent refuses a message, or null for any other message. */
export function refusalOf(message: AgentMessage): string | null {
  if (message.type !== 'core.error') return null
  const { kind, message: text } = fieldsOf(message)
  return `the agent of the sandbox refused the message: ${String(kind)}: ${String(text)}`
}
