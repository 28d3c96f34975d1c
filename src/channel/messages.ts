import { FLAG_SESSION_START, FLAG_SHUTDOWN, FLAG_TERMINAL } from './frame.ts'

/** The version of the agent protocol that we speak. The protocol calls its versions generations. */
export const GENERATION = 7

/** The side that may send a message. `host` is microsandbox's own runtime; no client may send its messages. */
type Sender = 'client' | 'agent' | 'both' | 'host'

type Message = { readonly sender: Sender; readonly flags: number; readonly generation: number }

/**
 * For every message of the protocol: its sender, its flags (they depend only on its type), and the first protocol
 * version that has it.
 */
export const MESSAGES = {
  'core.ready': { sender: 'agent', flags: 0, generation: 1 },
  'core.init.resolved': { sender: 'host', flags: 0, generation: 1 },
  'core.init.ack': { sender: 'host', flags: 0, generation: 1 },
  'core.bootstrap': { sender: 'host', flags: 0, generation: 7 },
  'core.shutdown': { sender: 'host', flags: FLAG_SHUTDOWN, generation: 1 },
  'core.relay.client.disconnected': { sender: 'host', flags: 0, generation: 1 },
  'core.clock.sync': { sender: 'host', flags: 0, generation: 1 },
  'core.ping': { sender: 'client', flags: 0, generation: 6 },
  'core.pong': { sender: 'agent', flags: FLAG_TERMINAL, generation: 6 },
  'core.touch': { sender: 'client', flags: 0, generation: 6 },
  'core.touched': { sender: 'agent', flags: FLAG_TERMINAL, generation: 6 },
  'core.error': { sender: 'agent', flags: FLAG_TERMINAL, generation: 5 },
  'core.exec.request': { sender: 'client', flags: FLAG_SESSION_START, generation: 1 },
  'core.exec.started': { sender: 'agent', flags: 0, generation: 1 },
  'core.exec.stdin': { sender: 'client', flags: 0, generation: 1 },
  'core.exec.stdin.error': { sender: 'agent', flags: 0, generation: 1 },
  'core.exec.stdout': { sender: 'agent', flags: 0, generation: 1 },
  'core.exec.stderr': { sender: 'agent', flags: 0, generation: 1 },
  'core.exec.exited': { sender: 'agent', flags: FLAG_TERMINAL, generation: 1 },
  'core.exec.failed': { sender: 'agent', flags: FLAG_TERMINAL, generation: 1 },
  'core.exec.resize': { sender: 'client', flags: 0, generation: 1 },
  'core.exec.signal': { sender: 'client', flags: 0, generation: 1 },
  'core.fs.request': { sender: 'client', flags: FLAG_SESSION_START, generation: 2 },
  'core.fs.response': { sender: 'agent', flags: FLAG_TERMINAL, generation: 2 },
  'core.fs.data': { sender: 'both', flags: 0, generation: 2 },
  'core.tcp.connect': { sender: 'client', flags: FLAG_SESSION_START, generation: 4 },
  'core.tcp.connected': { sender: 'agent', flags: 0, generation: 4 },
  'core.tcp.data': { sender: 'both', flags: 0, generation: 4 },
  'core.tcp.eof': { sender: 'both', flags: 0, generation: 4 },
  'core.tcp.close': { sender: 'client', flags: 0, generation: 4 },
  'core.tcp.closed': { sender: 'agent', flags: FLAG_TERMINAL, generation: 4 },
  'core.tcp.failed': { sender: 'agent', flags: FLAG_TERMINAL, generation: 4 },
} as const satisfies Readonly<Record<string, Message>>

export type MessageType = keyof typeof MESSAGES

type SentBy<S extends Sender> = {
  [T in MessageType]: (typeof MESSAGES)[T]['sender'] extends S ? T : never
}[MessageType]

/** The types of messages that the agent's side may send. */
export type AgentMessageType = SentBy<'agent' | 'both'>
/** The types of messages that a client may send. */
export type ClientMessageType = SentBy<'client' | 'both'>

const CLIENT_TYPES: ReadonlySet<string> = new Set(
  Object.entries(MESSAGES)
    .filter(([, message]) => message.sender === 'client' || message.sender === 'both')
    .map(([type]) => type),
)

/** Whether a client may send messages of this type. */
export function isClientMessage(type: string): type is ClientMessageType {
  return CLIENT_TYPES.has(type)
}

/** The reasons for a `core.error`. */
export type ErrorKind =
  | 'malformed_message'
  | 'unsupported_message_type'
  | 'unsupported_protocol_generation'
  | 'invalid_flags'
  | 'invalid_payload'
  | 'invalid_session'
