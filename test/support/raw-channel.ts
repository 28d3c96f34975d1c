import { once } from 'node:events'
import { WebSocket } from 'ws'
import { asBytes, asMap, decodeCbor } from '../../src/channel/cbor.ts'
import { decodeEnvelope, encodeMessage } from '../../src/channel/envelope.ts'
import { makeFrameReader } from '../../src/channel/frame.ts'
import type { MessageType } from '../../src/channel/messages.ts'
import { waitUntil } from './wait.ts'

/** A command channel to a sandbox on a real server. A test may stop reading from its WebSocket. */
export type RawChannel = {
  readonly socket: WebSocket
  /** Resolves with the server's close code and reason. */
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>
  send(id: number, type: MessageType, payload: Readonly<Record<string, unknown>>): void
  /** Starts a program and returns its session id. Its output goes to `onOutput`. */
  exec(cmd: string, args: readonly string[], onOutput?: (data: Buffer) => void): number
  /** Resolves with the id that a session's process has inside the sandbox. */
  pidOf(id: number): Promise<number>
  /** Resolves with the exit code of a session's process. */
  exitOf(id: number, limitMs?: number): Promise<unknown>
  /** Runs a program to its end and returns its output. */
  run(cmd: string, ...args: readonly string[]): Promise<string>
}

export type RawServer = { readonly url: string; readonly key: string }

/** Sends the upgrade request. */
export function dialRaw({ url, key }: RawServer, sandbox: string): WebSocket {
  return new WebSocket(`${url.replace('http', 'ws')}/v1/sandboxes/${sandbox}/agent`, {
    headers: { authorization: `Bearer ${key}` },
    perMessageDeflate: false,
  })
}

/** The status, headers and body of a refused upgrade. */
export async function refusalOf(socket: WebSocket) {
  socket.on('error', () => socket.terminate())
  const [, response] = await once(socket, 'unexpected-response')
  let text = ''
  for await (const chunk of response) text += String(chunk)
  const { error } = JSON.parse(text)
  return { status: Number(response.statusCode), retryAfter: String(response.headers['retry-after']), error }
}

/** Opens a channel and waits for the agent's first message. */
export async function openRaw(server: RawServer, sandbox: string): Promise<RawChannel> {
  const socket = dialRaw(server, sandbox)
  const reader = makeFrameReader()
  const outputs = new Map<number, (data: Buffer) => void>()
  const pids = new Map<number, number>()
  const exits = new Map<number, unknown>()
  let skip = 8
  let isReady = false
  let lastId = 0
  const closed = new Promise<{ readonly code: number; readonly reason: string }>((resolve) => {
    socket.once('close', (code, reason) => {
      resolve({ code, reason: reason.toString() })
    })
  })
  socket.on('message', (data) => {
    if (!Buffer.isBuffer(data)) throw new Error('a message came in pieces')
    const piece = data.subarray(skip)
    skip = Math.max(0, skip - data.length)
    for (const frame of reader.push(piece)) {
      const { type, payload } = decodeEnvelope(frame.body)
      const fields = asMap(decodeCbor(payload))
      if (type === 'core.ready') isReady = true
      if (type === 'core.exec.started') pids.set(frame.id, Number(fields['pid']))
      if (type === 'core.exec.stdout') outputs.get(frame.id)?.(Buffer.from(asBytes(fields['data'])))
      if ((frame.flags & 1) === 1) exits.set(frame.id, fields['code'] ?? JSON.stringify(fields))
    }
  })
  await once(socket, 'open')
  await waitUntil(() => isReady)
  const channel: RawChannel = {
    socket,
    closed,
    send(id, type, payload) {
      socket.send(encodeMessage(id, type, payload))
    },
    exec(cmd, args, onOutput) {
      const id = ++lastId
      if (onOutput !== undefined) outputs.set(id, onOutput)
      const defaults = { env: [], cwd: '/', user: null, tty: false, rows: 24, cols: 80, rlimits: [] }
      channel.send(id, 'core.exec.request', { cmd, args, ...defaults })
      return id
    },
    pidOf: (id) => waitUntil(() => pids.get(id)),
    exitOf: (id, limitMs) =>
      waitUntil(() => exits.has(id) && { code: exits.get(id) }, limitMs).then(({ code }) => code),
    async run(cmd, ...args) {
      let text = ''
      const id = channel.exec(cmd, args, (data) => {
        text += data.toString()
      })
      await channel.exitOf(id)
      return text
    },
  }
  return channel
}
