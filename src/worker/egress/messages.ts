import type { ConnectionRules } from '../../domain/network/judge-connection.ts'

/** The port of the router's loopback device to which the packet filter redirects connections. */
export const EGRESS_PORT = 15_001

/** How the connections of one sandbox are judged. */
export type EgressSettings = ConnectionRules & {
  /** The router's address towards the sandbox. Connections for the sandbox leave from it, so that the packet filter judges them. */
  readonly gateway: string
}

/** A message of the worker to its egress process. */
export type EgressOrder =
  /** Replaces the settings of a sandbox, which is known by its address. Null ends its connections. */
  | { readonly kind: 'sandbox'; readonly address: string; readonly settings: EgressSettings | null }
  /** Answers a question. */
  | { readonly kind: 'names'; readonly id: number; readonly names: readonly string[] }

/** A message of the egress process to its worker. */
export type EgressEvent =
  | { readonly kind: 'ready' }
  /** Asks for the names that are tied to an address for a sandbox. */
  | { readonly kind: 'ask'; readonly id: number; readonly sandbox: string; readonly address: string }
