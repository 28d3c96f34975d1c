import type { Duplex } from 'node:stream'
import { CborError } from '../../channel/cbor.ts'
import type { Channel, ChannelDeps, MessageHandler, MessageHandlers } from './channel.ts'
import {
  type Envelope,
  MAX_DATA_BYTES,
  decodeEnvelope,
  decodingPieces,
  encodeData,
  encodeMessage,
  fastDecodeEnvelope,
} from '../../channel/envelope.ts'
import { makeExecHandlers } from './exec-sessions.ts'
import { makeFsHandlers } from './fs-sessions.ts'
import { FLAG_SESSION_START, type Frame, FrameLengthError, makeFrameReader } from '../../channel/frame.ts'
import type { Guest } from './guest.ts'
import { makeInputBudget, makeOutbox } from './flow-control.ts'
import { type AgentMessageType, type ClientMessageType, MESSAGES, isClientMessage } from '../../channel/messages.ts'
import { makeTcpHandlers } from './tcp-sessions.ts'
import { makeStreamHolds } from '../../lib/streams/stream-holds.ts'
import { takeAtPace } from '../../lib/turns/take-at-pace.ts'

/** The correlation ids that a client may use. Microsandbox's relay assigns the same range to its first client. */
const ID_MIN = 1
const ID_MAX = 33_554_431

/**
 * Above this many unsent bytes, the channel stops reading from the client, because further requests would add further
 * replies. Process output alone never reaches this limit, so a client that reads slowly can still send a signal.
 */
const UNSENT_LIMIT_BYTES = 16 * 1024 * 1024
/**
 * The maximum input that all sessions of a client may keep for slow targets. Each session also has a limit of its own.
 */
const MAX_INPUT_BYTES = 32 * 1024 * 1024
/** How many small frames take as long as the start of a command or of a connection. */
const START_PIECES = 16

/**
 * Messages to the client that don't count as activity of the sandbox. `core.ready`, for example, only answers a new
 * connection.
 */
const IDLE_AGENT_MESSAGES: ReadonlySet<AgentMessageType> = new Set([
  'core.ready',
  'core.pong',
  'core.touched',
  'core.error',
])
/**
 * Client messages whose arrival doesn't count as activity of the sandbox. The handler of `core.touch` reports activity
 * itself.
 */
const IDLE_CLIENT_MESSAGES: ReadonlySet<ClientMessageType> = new Set(['core.ping', 'core.touch'])

/**
 * Serves the agent protocol to one client of a sandbox. Sends the id range and `core.ready`, then handles messages
 * until the stream ends. Resolves when the stream is closed and every process of this client has ended. Never rejects.
 */
export function serveChannel(stream: Duplex, guest: Guest, deps: ChannelDeps): Promise<void> {
  const owned = new Set<Promise<void>>()
  const liveIds = new Set<number>()
  const pauseInput = makeStreamHolds(stream)
  const reader = makeFrameReader()
  let releaseFull: (() => void) | null = null

  const outbox = makeOutbox(stream, () => {
    releaseFull?.()
    releaseFull = null
  })

  const channel: Channel = {
    guest,
    capture: deps.capture,
    clock: deps.clock,
    log: deps.log,
    send(id, type, payload) {
      if (!IDLE_AGENT_MESSAGES.has(type)) deps.onActivity()
      outbox.send([encodeMessage(id, type, payload)])
    },
    sendData(id, type, data) {
      deps.onActivity()
      for (let at = 0; at < data.length; at += MAX_DATA_BYTES) {
        outbox.send(encodeData(id, type, data.subarray(at, at + MAX_DATA_BYTES)))
      }
    },
    sendError(id, kind, detail) {
      const offender = detail.type === undefined ? {} : { offending_type: detail.type.slice(0, 100) }
      channel.send(id, 'core.error', { kind, message: detail.message, ...offender })
    },
    get canSend() {
      return outbox.canWrite
    },
    whenCanSend: (turn) => {
      outbox.whenCanWrite(turn)
    },
    pauseInput,
    trackInput: (bytes) => input.add(bytes),
    claimId(id) {
      if (liveIds.has(id)) return 'live'
      if (liveIds.size >= deps.limits.sessions) return 'full'
      liveIds.add(id)
      return 'claimed'
    },
    releaseId(id) {
      liveIds.delete(id)
    },
    supervise(work) {
      const watched = work
        .catch((error: unknown) => {
          deps.log.error({ error }, 'a session of a command channel failed')
        })
        .finally(() => {
          owned.delete(watched)
        })
      owned.add(watched)
    },
  }

  const input = makeInputBudget(pauseInput, MAX_INPUT_BYTES)

  const maintenance = makeMaintenanceHandlers(channel, deps.onActivity)
  const exec = makeExecHandlers(channel, deps.onProcess)
  const fs = makeFsHandlers(channel)
  const tcp = makeTcpHandlers(channel)
  const families = [maintenance, exec, fs, tcp]
  const handlers: Readonly<Record<ClientMessageType, MessageHandler>> = {
    ...maintenance.handlers,
    ...exec.handlers,
    ...fs.handlers,
    ...tcp.handlers,
  }

  const receive = (frame: Frame): void => {
    const envelope = readEnvelope(frame)
    if (envelope === null) {
      channel.sendError(frame.id, 'malformed_message', { message: 'the frame contains no message' })
      return
    }
    const { type, payload } = envelope
    if (!isClientMessage(type)) {
      channel.sendError(frame.id, 'unsupported_message_type', { message: 'no client may send this type', type })
      return
    }
    if (frame.flags !== MESSAGES[type].flags) {
      const message = `flags ${String(frame.flags)}, expected ${String(MESSAGES[type].flags)}`
      channel.sendError(frame.id, 'invalid_flags', { message, type })
      return
    }
    if (frame.id < ID_MIN || frame.id >= ID_MAX) {
      const message = `an id must be from ${String(ID_MIN)} to ${String(ID_MAX - 1)}`
      channel.sendError(frame.id, 'invalid_session', { message, type })
      return
    }
    if (!IDLE_CLIENT_MESSAGES.has(type)) deps.onActivity()
    try {
      handlers[type]({ id: frame.id, payload })
    } catch (error) {
      if (!(error instanceof CborError)) throw error
      channel.sendError(frame.id, 'invalid_payload', { message: error.message, type })
    }
  }

  let isOver = false

  const taking = {
    pace: deps.pace,
    take(frame: Frame) {
      receive(frame)
      if (outbox.queuedBytes > UNSENT_LIMIT_BYTES) releaseFull ??= pauseInput()
      return piecesOf(frame)
    },
    hold: pauseInput,
    isOver: () => isOver,
    onFailure(error: unknown) {
      if (!(error instanceof FrameLengthError)) deps.log.error({ error }, 'a command channel failed')
      else deps.log.debug({ error }, 'a client sent an invalid frame on its command channel')
      stream.destroy(error instanceof Error ? error : undefined) // with an error, so that the other side doesn't see a regular end
    },
  }
  stream.on('data', (piece: Buffer) => {
    takeAtPace(reader.push(piece), taking)
  })

  return new Promise((resolve) => {
    const finish = (): void => {
      if (isOver) return
      isOver = true
      outbox.close()
      for (const family of families) family.close()
      stream.destroy()
      const settle = async (): Promise<void> => {
        while (owned.size > 0) await Promise.all(owned)
        resolve()
      }
      void settle()
    }
    stream.on('end', finish)
    stream.on('error', finish)
    stream.on('close', finish)
    outbox.send([encodePrologue(), encodeMessage(0, 'core.ready', readyPayload(deps))])
  })
}

/** How many pieces a frame counts as, because of the time that it takes. */
function piecesOf({ flags, body }: Frame): number {
  const pieces = decodingPieces(body)
  if (flags !== FLAG_SESSION_START) return pieces
  const type = fastDecodeEnvelope(body)?.type
  return type === 'core.exec.request' || type === 'core.tcp.connect' ? START_PIECES + pieces : pieces
}

function readEnvelope(frame: Frame): Envelope | null {
  try {
    return decodeEnvelope(frame.body)
  } catch (error) {
    if (error instanceof CborError) return null
    throw error
  }
}

function encodePrologue(): Buffer {
  const range = Buffer.alloc(8)
  range.writeUInt32BE(ID_MIN, 0)
  range.writeUInt32BE(ID_MAX, 4)
  return range
}

/**
 * Returns the payload of `core.ready`. Its times describe the boot of a virtual machine, which containers don't have.
 * Clients require only that the fields are present.
 */
function readyPayload(deps: ChannelDeps): Readonly<Record<string, unknown>> {
  return {
    boot_time_ns: 0,
    init_time_ns: 0,
    ready_time_ns: Math.round(deps.clock.monotonicMs() * 1_000_000),
    agent_version: deps.agentVersion,
  }
}

/** Creates the handlers for `core.ping` and `core.touch`. Only a touch counts as activity. */
function makeMaintenanceHandlers(
  channel: Channel,
  onActivity: () => void,
): MessageHandlers<'core.ping' | 'core.touch'> {
  let touches = 0
  return {
    handlers: {
      'core.ping': ({ id }) => {
        channel.send(id, 'core.pong', {})
      },
      'core.touch': ({ id }) => {
        onActivity()
        touches += 1
        channel.send(id, 'core.touched', { activity_seq: touches })
      },
    },
    close: () => {
      // no session is open, because every request is answered when it arrives
    },
  }
}
