import { asBytes, asMap, asText, decodeCbor, encodeCbor } from '../../../src/channel/cbor.ts'
import { FLAG_TERMINAL } from '../../../src/channel/frame.ts'
import { GENERATION, MESSAGES, type ClientMessageType } from '../../../src/channel/messages.ts'
import { at } from './api.ts'

/** A browser's side of the command channel of a sandbox: sessions of the agent protocol over one WebSocket. */
export type Agent = {
  /** Starts a session by its first message. `onMessage` gets the messages of the agent; the last one has `isLast`. */
  start(type: ClientMessageType, payload: Payload, onMessage: (message: AgentMessage) => void): Session
  /** Resolves when the agent is ready. Rejects with the reason if the channel can't be opened. */
  readonly ready: Promise<void>
  /** Resolves with the reason when the channel has ended. */
  readonly closed: Promise<string>
  /** How much is waiting to be sent, in bytes. */
  unsentBytes(): number
  close(): void
}

export type Payload = Readonly<Record<string, unknown>>
export type AgentMessage = { readonly type: string; readonly payload: Payload; readonly isLast: boolean }
export type Session = { send(type: ClientMessageType, payload: Payload): void }

/** The bytes of the agent's first message: the range of ids that the client may use. */
const PROLOGUE_BYTES = 8
const HEAD_BYTES = 9

/** Opens the command channel of a running sandbox. */
export function openAgent(sandboxId: string): Agent {
  const socket = new WebSocket(new URL(at`/v1/sandboxes/${sandboxId}/agent`, location.href.replace(/^http/, 'ws')))
  socket.binaryType = 'arraybuffer'
  const ready = Promise.withResolvers<void>()
  const closed = Promise.withResolvers<string>()
  const sessions = new Map<number, (message: AgentMessage) => void>()
  let held = new Uint8Array()
  let nextId = 0

  const receive = (id: number, flags: number, body: Uint8Array): void => {
    const envelope = asMap(decodeCbor(body))
    const type = asText(envelope['t'])
    if (type === 'core.ready') return ready.resolve()
    const isLast = (flags & FLAG_TERMINAL) !== 0
    const listener = sessions.get(id)
    if (isLast) sessions.delete(id)
    listener?.({ type, payload: asMap(decodeCbor(asBytes(envelope['p']))), isLast })
  }
  const read = (): void => {
    const view = new DataView(held.buffer, held.byteOffset, held.byteLength)
    let offset = 0
    if (nextId === 0) {
      if (held.length < PROLOGUE_BYTES) return
      nextId = Math.max(1, view.getUint32(0))
      offset = PROLOGUE_BYTES
    }
    while (held.length - offset >= 4) {
      const end = offset + 4 + view.getUint32(offset)
      if (held.length < end) break
      receive(view.getUint32(offset + 4), view.getUint8(offset + 8), held.subarray(offset + HEAD_BYTES, end))
      offset = end
    }
    held = held.slice(offset)
  }
  socket.addEventListener('message', ({ data }: MessageEvent<ArrayBuffer>) => {
    const joined = new Uint8Array(held.length + data.byteLength)
    joined.set(held)
    joined.set(new Uint8Array(data), held.length)
    held = joined
    read()
  })
  socket.addEventListener('close', ({ reason, code }) => {
    const why = reason === '' ? `the connection ended (${String(code)})` : reason
    ready.reject(new Error(`The channel to the sandbox ended: ${why}.`))
    for (const listener of sessions.values()) listener({ type: 'lost', payload: { message: why }, isLast: true })
    sessions.clear()
    closed.resolve(why)
  })
  ready.promise.catch(() => closed.promise) // whoever waits for neither is told by `closed`

  const send = (id: number, type: ClientMessageType, payload: Payload): void => {
    const body = encodeCbor({ v: GENERATION, t: type, p: encodeCbor(payload) })
    const frame = new Uint8Array(HEAD_BYTES + body.length)
    const view = new DataView(frame.buffer)
    view.setUint32(0, HEAD_BYTES - 4 + body.length)
    view.setUint32(4, id)
    view.setUint8(8, MESSAGES[type].flags)
    frame.set(body, HEAD_BYTES)
    if (socket.readyState === WebSocket.OPEN) socket.send(frame)
  }
  return {
    ready: ready.promise,
    closed: closed.promise,
    unsentBytes: () => socket.bufferedAmount,
    close: () => socket.close(1000, 'goodbye'),
    start(type, payload, onMessage) {
      const id = nextId
      nextId += 1
      sessions.set(id, onMessage)
      send(id, type, payload)
      return { send: (next, fields) => send(id, next, fields) }
    },
  }
}

/** Opens a channel for one task and closes it afterwards. */
export async function withAgent<T>(sandboxId: string, work: (agent: Agent) => Promise<T>): Promise<T> {
  const agent = openAgent(sandboxId)
  try {
    await agent.ready
    return await work(agent)
  } finally {
    agent.close()
  }
}
