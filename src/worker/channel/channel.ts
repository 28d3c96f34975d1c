import type { Guest } from './guest.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { LogWriter } from '../logs/logs.ts'
import type { AgentMessageType, ClientMessageType, ErrorKind } from './messages.ts'

/** The dependencies and settings of a channel. */
export type ChannelDeps = {
  readonly clock: Clock
  readonly log: Log
  readonly limits: ChannelLimits
  /** Sent to the client in `core.ready`, for diagnostics only. */
  readonly agentVersion: string
  /** Called for each message that resets the sandbox's idle timeout. It must be cheap. */
  readonly onActivity: () => void
  /**
   * Called before a process is started. It returns a function that is called once when the process has ended. A sandbox
   * with a running process is in use, even when the process is silent.
   */
  readonly onProcess: () => () => void
  /** Also receives the output of every process. */
  readonly capture: OutputCapture
}

/** Receives output. It must be cheap and must not fail. */
type OutputCapture = Pick<LogWriter, 'stream'>

export type ChannelLimits = {
  /** The most sessions that one client may have open at a time. */
  readonly sessions: number
}

/** Enough for a client that multiplexes SSH sessions and port forwardings over one channel. */
export const DEFAULT_CHANNEL_LIMITS: ChannelLimits = { sessions: 256 }

/** What the message handlers (exec, fs, tcp) use of one client's connection. */
export interface Channel {
  readonly guest: Guest
  readonly capture: OutputCapture
  readonly clock: Clock
  readonly log: Log
  /** Queues a message. Never fails; does nothing once the connection is gone. */
  send(id: number, type: AgentMessageType, payload: Readonly<Record<string, unknown>>): void
  /** Queues `{data}` messages of at most `MAX_DATA_BYTES` each. Check `canSend` first. */
  sendData(id: number, type: AgentMessageType, data: Buffer): void
  /** Refuses a message and ends the client's session of that id. */
  sendError(id: number, kind: ErrorKind, detail: { readonly message: string; readonly type?: string }): void
  /** Whether the client reads fast enough to send it more data. */
  readonly canSend: boolean
  /** Calls back once the client can take more data. Callbacks run in order, each only while `canSend` holds. */
  whenCanSend(callback: () => void): void
  /** Stops reading from the client until the returned function is called. Several pauses may overlap. */
  pauseInput(): () => void
  /**
   * Counts input that a session holds until the returned function is called. Too much in all sessions pauses the
   * client.
   */
  trackInput(bytes: number): () => void
  /** Claims an id for a new session. Returns `live` when the id has a session, `full` at the session limit. */
  claimId(id: number): 'claimed' | 'live' | 'full'
  /** Frees an id after the terminal message of its session. */
  releaseId(id: number): void
  /** Watches a promise: a rejection is a bug and is logged. The channel ends after all watched promises. */
  supervise(work: Promise<void>): void
}

/** A client's message of a known type with the right flags. The payload is still encoded. */
export type IncomingMessage = { readonly id: number; readonly payload: Uint8Array }

/** Handles one message. Throws only `CborError`, for a payload of the wrong shape. */
export type MessageHandler = (message: IncomingMessage) => void

/** The handlers for the messages of one subject, with the sessions that they opened. */
export type MessageHandlers<T extends ClientMessageType> = {
  readonly handlers: Readonly<Record<T, MessageHandler>>
  /** The client is gone: ends all sessions at once. */
  close(): void
}
