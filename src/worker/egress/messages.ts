import type { EgressSecrets } from '../../domain/network/interception.ts'
import type { ConnectionRules } from '../../domain/network/judge-connection.ts'
import type { RequestContext, Violation } from './request-refused.ts'

/** The port of the router's loopback device to which the packet filter redirects connections. */
export const EGRESS_PORT = 15_001

/** How the connections of one sandbox are judged. */
export type EgressSettings = ConnectionRules &
  EgressSecrets & {
    /** The router's address towards the sandbox. Connections for the sandbox leave from it, so that the packet filter judges them. */
    readonly gateway: string
  }

/** A connection that was cut. It has no value of a secret. */
export type EgressRefusal = {
  /** Why, in words. */
  readonly reason: string
  /** The placeholder that was found where it must not go, if that is the reason. */
  readonly violation: Violation | null
  readonly destination: { readonly address: string; readonly port: number }
  readonly sni: string | null
  /** The request during which it was cut, if there was one. */
  readonly request: RequestContext | null
}

/** A message of the worker to its egress process. */
export type EgressOrder =
  /** Replaces the settings of a sandbox, which is known by its address. Null ends its connections. */
  | { readonly kind: 'sandbox'; readonly address: string; readonly settings: EgressSettings | null }
  /** Asks for an answer once the orders before it hold. */
  | { readonly kind: 'confirm'; readonly id: number }
  /** Answers a question. */
  | { readonly kind: 'names'; readonly id: number; readonly names: readonly string[] }

/** A message of the egress process to its worker. */
export type EgressEvent =
  | { readonly kind: 'ready' }
  | { readonly kind: 'confirmed'; readonly id: number }
  | { readonly kind: 'refused'; readonly sandbox: string; readonly refusal: EgressRefusal }
  /** Asks for the names that are tied to an address for a sandbox. */
  | { readonly kind: 'ask'; readonly id: number; readonly sandbox: string; readonly address: string }
