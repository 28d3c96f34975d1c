import type { Guest } from './guest.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { LogWriter } from '../logs/logs.ts'
import type { AgentMessageType, ClientMessageType, ErrorKind } from './messages.ts'

/** What a channel is served with. */
export type ChannelDeps = {
  readonly clock: Clock
  readonly log: Log
  readonly limits: ChannelLimits
  /** Told to the client in `core.ready`; diagnostic only. */
  readonly agentVersion: string
  /** Called for each message that counts against a sandbox's idle timeout (section 10); it must be cheap. */
  readonly onActivity: () => void
  /**
   * Called when a process is to be started; what it answers is called once when that is over. A sandbox in which one
   * runs is in use, however silent it is (the genuine runtime's rule for exec sessions).
   */
  readonly onProcess: () => () => void
  /** Where the output of processes is kept, too: every session's, as the genuine runtime does. */
  readonly capture: OutputCapture
}

/** What is kept of output; it must be cheap, and never fails. */
type OutputCapture = Pick<LogWriter, 'stream'>

export type ChannelLimits = {
  /** The most sessions that one client may have open at once. */
  readonly sessions: number
}

/** Limits that suit a client that multiplexes SSH sessions and port forwardings over one channel. */
export const DEFAULT_CHANNEL_LIMITS: ChannelLimits = { sessions: 256 }

/** What the families of messages (exec, fs, tcp) see of one client's connection. */
export interface Channel {
  readonly guest: Guest
  readonly capture: OutputCapture
  readonly clock: Clock
  readonly log: Log
  /** Queues a message. Sending never fails; once the connection is gone nothing happens. */
  send(id: number, type: AgentMessageType, payload: Readonly<Record<string, unknown>>): void
  /** Queues `{data}` messages, cut to the size limit of a frame. Ask `hasCapacity` first. */
  sendData(id: number, type: AgentMessageType, data: Buffer): void
  /** Refuses a message; the client's session of that id is over. */
  sendError(id: number, kind: ErrorKind, detail: { readonly message: string; readonly type?: string }): void
  /** Whether the client reads fast enough that more data may be sent. */
  readonly canSend: boolean
  /** Calls back once there is room. Waiters get their turns in order, each only while there is room. */
  whenCanSend(turn: () => void): void
  /** Stops reading from the client until the function that it returns is called. Holds add up. */
  pauseInput(): () => void
  /** Counts input that a session keeps until the function that it returns is called; too much of all stops the client. */
  trackInput(bytes: number): () => void
  /** Takes an id for a new session: `live` when it has one already, `full` at the limit of sessions. */
  claimId(id: number): 'claimed' | 'live' | 'full'
  /** Gives an id back after the terminal message of its session. */
  releaseId(id: number): void
  /** Takes responsibility for a promise: a rejection is a bug and is logged. */
  supervise(work: Promise<void>): void
}

/** A message of a client, of a known type and with the right flags; the payload is still encoded. */
export type IncomingMessage = { readonly id: number; readonly payload: Uint8Array }

/** Handles one message. It may throw `CborError` for a payload of the wrong shape, and nothing else. */
export type MessageHandler = (message: IncomingMessage) => void

/** The messages of one subject, with the sessions that they opened. */
export type MessageHandlers<T extends ClientMessageType> = {
  readonly handlers: Readonly<Record<T, MessageHandler>>
  /** The client is gone: ends every session of this family at once. */
  close(): void
}
