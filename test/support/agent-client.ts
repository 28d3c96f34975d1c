import { duplexPair } from 'node:stream'
import type { Duplex, DuplexOptions } from 'node:stream'
import { asId, type SandboxId } from '../../src/domain/ids.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { asBytes, asMap, decodeCbor } from '../../src/channel/cbor.ts'
import type { ChannelDeps } from '../../src/worker/channel/channel.ts'
import { decodeEnvelope, encodeMessage } from '../../src/channel/envelope.ts'
import { makeFrameReader } from '../../src/channel/frame.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'
import type { MessageType } from '../../src/channel/messages.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'
import { serveChannel } from '../../src/worker/channel/serve-channel.ts'
import { waitUntil } from './wait.ts'

/** A message that a client of the agent protocol received. */
export type Received = {
  readonly id: number
  readonly flags: number
  readonly type: string
  readonly payload: Readonly<Record<string, unknown>>
}

/** A client of a served channel, in this process. */
export type AgentClient = {
  readonly stream: Duplex
  /** The eight bytes that the served side sends before its first frame. */
  prologue(): Buffer
  readonly received: readonly Received[]
  send(id: number, type: MessageType, payload: Readonly<Record<string, unknown>>): void
  sendRaw(bytes: Buffer): void
  /** Starts a process and returns its id. */
  exec(request: ExecOptions): number
  /** Resolves with the first received message, past or future, that satisfies `wanted`. Rejects after `limitMs`. */
  next(wanted: (message: Received) => boolean, limitMs?: number): Promise<Received>
  /** Resolves with the outputs and the last message of a session, once the session is over. */
  finish(id: number, limitMs?: number): Promise<Finished>
  /** The output of a session so far. */
  text(id: number, stream?: 'stdout' | 'stderr'): string
  /** Drops the connection and resolves when the served side has released everything. */
  hangUp(): Promise<void>
  /** Resolves when the served side has ended. */
  readonly over: Promise<void>
}

export type ExecOptions = {
  readonly cmd: string
  readonly args?: readonly string[]
  readonly env?: readonly string[]
  readonly cwd?: string | null
  readonly user?: string | null
  readonly tty?: boolean
  readonly rows?: number
  readonly cols?: number
  readonly rlimits?: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[]
}

export type Finished = {
  readonly last: Received
  readonly code: unknown
  readonly stdout: string
  readonly stderr: string
}

/** How long a client waits for a message by default. It only keeps a test from hanging, also on a busy machine. */
const LIMIT_MS = 60_000
/** Messages that carry output of a sandbox. */
const OUTPUTS: ReadonlySet<string> = new Set(['core.exec.stdout', 'core.exec.stderr', 'core.fs.data'])

/**
 * Connects a new client with a channel that serves `guest`. With `keepsOutput: false`, output bytes are counted but not
 * kept.
 */
export function connectAgent(
  guest: Guest,
  options: {
    readonly deps?: Partial<ChannelDeps>
    readonly onOutput?: (data: Buffer) => void
    readonly stream?: DuplexOptions
  } = {},
): AgentClient {
  const [ours, theirs] = duplexPair(options.stream)
  const over = serveChannel(theirs, guest, {
    clock: systemClock,
    log: makeLog('silent'),
    limits: { sessions: 256 },
    pace: makePiecePacer().paceOf('org'),
    agentVersion: 'test',
    onActivity: () => {
      // the tests that check activity count it themselves
    },
    onProcess: () => () => undefined,
    capture: makeNoLogs().writerOf(asId<SandboxId>('box')),
    ...options.deps,
  })
  const received: Received[] = []
  const reader = makeFrameReader()
  let prologue = Buffer.alloc(0)
  ours.on('data', (piece: Buffer) => {
    const missing = 8 - prologue.length
    if (missing > 0) prologue = Buffer.concat([prologue, piece.subarray(0, missing)])
    for (const frame of reader.push(piece.subarray(Math.max(0, missing)))) {
      const { type, payload } = decodeEnvelope(frame.body)
      const fields = asMap(decodeCbor(payload))
      const isOutput = OUTPUTS.has(type)
      if (isOutput && options.onOutput !== undefined) options.onOutput(Buffer.from(asBytes(fields['data'])))
      else received.push({ id: frame.id, flags: frame.flags, type, payload: fields })
    }
  })
  ours.on('error', () => {
    // the served side destroyed its end of the connection
  })
  let nextId = 1
  const text = (id: number, stream: 'stdout' | 'stderr' = 'stdout'): string =>
    Buffer.concat(
      received
        .filter((message) => message.id === id && message.type === `core.exec.${stream}`)
        .map((message) => asBytes(message.payload['data'])),
    ).toString('utf8')
  const next = (wanted: (message: Received) => boolean, limitMs = LIMIT_MS): Promise<Received> =>
    waitUntil(() => received.find(wanted), limitMs)
  const send: AgentClient['send'] = (id, type, payload) => {
    ours.write(encodeMessage(id, type, payload))
  }
  return {
    stream: ours,
    prologue: () => prologue,
    received,
    send,
    sendRaw: (bytes) => {
      ours.write(bytes)
    },
    exec(request) {
      const id = nextId++
      send(id, 'core.exec.request', {
        args: [],
        env: [],
        cwd: '/',
        user: null,
        tty: false,
        rows: 24,
        cols: 80,
        rlimits: [],
        ...request,
      })
      return id
    },
    next,
    async finish(id, limitMs) {
      const last = await next((message) => message.id === id && (message.flags & 1) === 1, limitMs)
      return { last, code: last.payload['code'], stdout: text(id), stderr: text(id, 'stderr') }
    },
    text,
    async hangUp() {
      ours.destroy()
      theirs.destroy()
      await over
    },
    over,
  }
}
