import { asBytes } from '../../src/channel/cbor.ts'
import type { ChannelDeps } from '../../src/worker/channel/channel.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'
import { connectAgent, type AgentClient } from './agent-client.ts'

/** A `core.fs.response`. */
export type FsAnswer = { readonly ok: unknown; readonly error: unknown; readonly data: unknown }

/** A client that sends file requests over a channel, each in a session of its own. */
export type FsClient = {
  readonly agent: AgentClient
  /** Sends a request and returns its id. */
  ask(op: string, fields: object): number
  /** Resolves with the response to a request. */
  answer(id: number, limitMs?: number): Promise<FsAnswer>
  /** Runs an operation and returns its data. Rejects with the error of the response. */
  run(op: string, fields: object): Promise<unknown>
  /** Runs an operation that must fail and returns its error. */
  refusal(op: string, fields: object): Promise<string>
  open(path: string, options?: object): Promise<number>
  /** Sends data for an open write request. Empty data ends the write. */
  send(id: number, data: Buffer): void
  /** Writes to an open file and waits for the response. */
  write(handle: number, data: Buffer, more?: object): Promise<FsAnswer>
  /** Reads from an open file. */
  read(handle: number, more?: object): Promise<Buffer>
  /** The data received so far for a read request. */
  received(id: number): Buffer
}

/**
 * Connects a new client with a channel that serves a guest's files. With `onOutput`, received data goes there and is
 * not kept.
 */
export function connectFiles(
  guest: Guest,
  deps: Partial<ChannelDeps> = {},
  onOutput?: (data: Buffer) => void,
): FsClient {
  const agent = connectAgent(guest, onOutput === undefined ? { deps } : { deps, onOutput })
  let nextId = 1
  const client: FsClient = {
    agent,
    ask(op, fields) {
      const id = nextId++
      agent.send(id, 'core.fs.request', { op: { [op]: fields } })
      return id
    },
    async answer(id, limitMs) {
      const { payload } = await agent.next(
        (message) => message.id === id && message.type === 'core.fs.response',
        limitMs,
      )
      return { ok: payload['ok'], error: payload['error'], data: payload['data'] }
    },
    async run(op, fields) {
      const { ok, error, data } = await client.answer(client.ask(op, fields))
      if (ok !== true) throw new Error(String(error))
      return data
    },
    async refusal(op, fields) {
      const { ok, error } = await client.answer(client.ask(op, fields))
      if (ok !== false) throw new Error(`${op} was not refused`)
      return String(error)
    },
    async open(path, options = { read: true }) {
      return numberOf(await client.run('OpenFile', { path, options }), 'Handle')
    },
    send(id, data) {
      agent.send(id, 'core.fs.data', { data })
    },
    async write(handle, data, more = {}) {
      const id = client.ask('Write', { handle, offset: 0, len: null, ...more })
      for (let at = 0; at < data.length; at += CHUNK_BYTES) client.send(id, data.subarray(at, at + CHUNK_BYTES))
      client.send(id, Buffer.alloc(0))
      return await client.answer(id)
    },
    async read(handle, more = {}) {
      const id = client.ask('Read', { handle, offset: 0, len: null, ...more })
      const { ok, error } = await client.answer(id)
      if (ok !== true) throw new Error(String(error))
      return client.received(id)
    },
    received: (id) =>
      Buffer.concat(
        agent.received
          .filter((message) => message.id === id && message.type === 'core.fs.data')
          .map((message) => asBytes(message.payload['data'])),
      ),
  }
  return client
}

/** The size of the largest data messages that the public client sends. */
const CHUNK_BYTES = 3 * 1024 * 1024

/** A number in a response's data. */
export function numberOf(data: unknown, variant: string): number {
  const value = fieldOf(data, variant)
  if (typeof value !== 'number') throw new Error(`no number '${variant}' in ${JSON.stringify(data)}`)
  return value
}

/** A field of a map; undefined when it is missing. */
export function fieldOf(data: unknown, name: string): unknown {
  return typeof data === 'object' && data !== null ? new Map(Object.entries(data)).get(name) : undefined
}

/** The paths and kinds of a listing, in order of the paths. */
export function namesOf(data: unknown): readonly string[] {
  const list = fieldOf(data, 'List')
  if (!Array.isArray(list)) throw new Error(`no list in ${JSON.stringify(data)}`)
  return list.map((entry) => `${String(fieldOf(entry, 'path'))} ${String(fieldOf(entry, 'kind'))}`).toSorted()
}
