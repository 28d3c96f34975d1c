import type { Guest } from './guest.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Pace } from '../../lib/turns/piece-pacer.ts'
import type { LogWriter } from '../logs/logs.ts'
import type { AgentMessageType, ClientMessageType, ErrorKind } from '../../channel/messages.ts'

/** The dependencies and settings of a channel. */
export type ChannelDeps = {
  readonly clock: Clock
  readonly log: Log
  readonly limits: ChannelLimits
  /** How many frames of the client are taken in a turn of the event loop. */
  readonly pace: Pace
  /** Sent to the client in `core.ready`, for diagnostics only. */
  readonly agentVersion: string
  /**
   * Called for each message that resets the sandbox's idle timeout. This happens often, so the function must be cheap.
   */
  readonly onActivity: () => void
  /**
   * Called before a client's process is started. It returns a function, which is called once the process has ended.
   * Between the two calls the sandbox counts as in use, even if the process writes no output.
   */
  readonly onProcess: () => () => void
  /** Receives a copy of the output of every process. */
  readonly capture: OutputCapture
}

/** Receives copies of the output of processes. Its streams must accept data cheaply and must not fail. */
type OutputCapture = Pick<LogWriter, 'stream'>

export type ChannelLimits = {
  /** The maximum number of sessions that one client may have open at a time. */
  readonly sessions: number
}

/**
 * The default limits. They suffice for a client that multiplexes SSH sessions and port forwardings over one channel.
 */
export const DEFAULT_CHANNEL_LIMITS: ChannelLimits = { sessions: 256 }

/** One client's connection, as the message handlers for exec, fs and tcp use it. */
export interface Channel {
  readonly guest: Guest
  readonly capture: OutputCapture
  readonly clock: Clock
  readonly log: Log
  /** Queues a message. Never fails, and does nothing after the connection is closed. */
  send(id: number, type: AgentMessageType, payload: Readonly<Record<string, unknown>>): void
  /** Queues `{data}` messages of at most `MAX_DATA_BYTES` each. Check `canSend` first. */
  sendData(id: number, type: AgentMessageType, data: Buffer): void
  /** Sends a `core.error`, which ends the client's session with that id. */
  sendError(id: number, kind: ErrorKind, detail: { readonly message: string; readonly type?: string }): void
  /** Whether the client reads fast enough to send it more data. */
  readonly canSend: boolean
  /**
   * Calls back once the client can receive more data. Callbacks run in order, and each runs only while `canSend` is
   * true.
   */
  whenCanSend(callback: () => void): void
  /** Stops reading from the client until the returned function is called. Several pauses may overlap. */
  pauseInput(): () => void
  /**
   * Adds `bytes` to the input that all sessions together keep in memory. The returned function subtracts them again.
   * The client is paused while the sum is above a limit.
   */
  trackInput(bytes: number): () => void
  /**
   * Claims an id for a new session. Returns `live` when the id already has a session, and `full` when the client has as
   * many sessions as it may.
   */
  claimId(id: number): 'claimed' | 'live' | 'full'
  /** Frees an id after the terminal message of its session. */
  releaseId(id: number): void
  /**
   * Watches a promise. A rejection is a bug and is logged. The channel ends only after all watched promises have
   * settled.
   */
  supervise(work: Promise<void>): void
}

/** A client's message of a known type with the correct flags. The payload is not decoded yet. */
export type IncomingMessage = { readonly id: number; readonly payload: Uint8Array }

/** Handles one message. Throws only `CborError`, for a payload of the wrong shape. */
export type MessageHandler = (message: IncomingMessage) => void

/** The handlers for one group of message types (exec, fs or tcp), and the sessions that they opened. */
export type MessageHandlers<T extends ClientMessageType> = {
  readonly handlers: Readonly<Record<T, MessageHandler>>
  /** Ends all sessions at once. Called when the client has disconnected. */
  close(): void
}
