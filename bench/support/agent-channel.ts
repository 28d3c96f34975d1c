import { WebSocket, type RawData } from 'ws'
import { asMap, decodeCbor } from '../../src/channel/cbor.ts'
import { decodeEnvelope, encodeMessage } from '../../src/channel/envelope.ts'
import { makeFrameReader, type Frame } from '../../src/channel/frame.ts'
import type { MessageType } from '../../src/channel/messages.ts'
import type { Cloud } from './cloud.ts'

/** A minimal client of the agent protocol over a WebSocket of its own. */
export type AgentChannel = {
  /** Opens a session by sending its first message. */
  request(type: MessageType, payload: Payload): Session
  close(): void
}

export type Payload = Readonly<Record<string, unknown>>

export type Session = {
  /**
   * Resolves when the session is over, with its last message and the total bytes of data that came before. Rejects when
   * the last message reports a failure.
   */
  readonly over: Promise<{ readonly payload: Payload; readonly bytes: number }>
  /** Sends a message of this session. Resolves when the socket has accepted it. */
  send(type: MessageType, payload: Payload): Promise<void>
}

/** How many bytes the agent sends before its first frame. */
const PROLOGUE_BYTES = 8
const FAILURES = ['core.exec.failed', 'core.error', 'core.tcp.failed']

/** Opens the command channel of a running sandbox and waits for `core.ready`. */
export async function openAgentChannel(cloud: Cloud, id: string): Promise<AgentChannel> {
  const socket = new WebSocket(`ws://${cloud.host}:${String(cloud.port)}/v1/sandboxes/${id}/agent`, {
    headers: { authorization: cloud.headers['authorization'] ?? '' },
    perMessageDeflate: false,
  })
  const reader = makeFrameReader()
  const sessions = new Map<number, (frame: Frame) => void>()
  const ready = Promise.withResolvers<void>()
  let missing = PROLOGUE_BYTES
  let nextId = 1
  socket.on('message', (data: RawData) => {
    const piece = Buffer.isBuffer(data) ? data : Buffer.concat(Array.isArray(data) ? data : [Buffer.from(data)])
    const skipped = Math.min(missing, piece.length)
    missing -= skipped
    for (const frame of reader.push(piece.subarray(skipped))) {
      if (frame.id === 0) ready.resolve()
      sessions.get(frame.id)?.(frame)
    }
  })
  socket.once('error', ready.reject)
  socket.once('close', (code, reason) => {
    ready.reject(new Error(`the channel was closed: ${String(code)} ${reason.toString()}`))
  })
  await ready.promise
  return {
    request(type, payload) {
      const id = nextId++
      const { promise: over, resolve, reject } = Promise.withResolvers<Awaited<Session['over']>>()
      let bytes = 0
      sessions.set(id, (frame) => {
        if ((frame.flags & 1) === 0) {
          bytes += dataBytes(decodeEnvelope(frame.body).payload)
          return
        }
        sessions.delete(id)
        const last = decodeEnvelope(frame.body)
        const fields = asMap(decodeCbor(last.payload))
        if (FAILURES.includes(last.type) || fields['ok'] === false)
          reject(new Error(`${last.type}: ${JSON.stringify(fields)}`)) // prettier-ignore
        else resolve({ payload: fields, bytes })
      })
      const send: Session['send'] = (kind, fields) =>
        new Promise((sent, failed) => {
          socket.send(encodeMessage(id, kind, fields), { binary: true }, (error) => (error ? failed(error) : sent()))
        })
      send(type, payload).catch(reject)
      return { over, send }
    },
    close: () => socket.terminate(),
  }
}

/**
 * Returns the length of the byte string in a message `{data: …}`, or 0 for any other message. It reads only the head,
 * because decoding the message would copy the bytes.
 */
function dataBytes(payload: Uint8Array): number {
  if (payload[0] !== 0xa1 || payload[1] !== 0x64 || Buffer.from(payload.subarray(2, 6)).toString('latin1') !== 'data')
    return 0
  const head = payload[6] ?? 0
  const width = head === 0x58 ? 1 : head === 0x59 ? 2 : head === 0x5a ? 4 : 0
  return payload.length - 7 - width
}

/** Runs a program until it ends. Resolves with the number of bytes that it wrote. */
export async function runProgram(channel: AgentChannel, cmd: string, ...args: readonly string[]): Promise<number> {
  const request = { cmd, args, env: [], cwd: '/', user: null, tty: false, rows: 24, cols: 80, rlimits: [] }
  const { payload, bytes } = await channel.request('core.exec.request', request).over
  if (payload['code'] !== 0) throw new Error(`${cmd} ended with ${String(payload['code'])}`)
  return bytes
}

/** Requests one file operation. Resolves with its last message and the number of bytes that it streamed. */
export async function requestFileOperation(
  channel: AgentChannel,
  op: string,
  fields: Payload,
): Promise<Awaited<Session['over']>> {
  return await channel.request('core.fs.request', { op: { [op]: fields } }).over
}

/** Opens a file of the sandbox. Resolves with the file's handle. */
export async function openFile(channel: AgentChannel, path: string, how: 'read' | 'write'): Promise<number> {
  const options = { read: how === 'read', write: how === 'write', append: false, create: how === 'write', truncate: how === 'write', create_new: false, mode: null } // prettier-ignore
  const { payload } = await requestFileOperation(channel, 'OpenFile', { path, options })
  return Number(asMap(payload['data'])['Handle'])
}
