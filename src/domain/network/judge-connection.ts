import type { Cidr } from '../cidr.ts'
import { findRule, isDecidedByName, type PacketRule } from './network-policy.ts'

/** What the first bytes of a TCP connection show. */
export type FirstBytes = {
  readonly form: 'tls' | 'http' | 'opaque'
  /** The name that they ask for (SNI or Host), in lower case without a port. Null if they name none. */
  readonly name: string | null
  /** Whether the name that counts is encrypted (ECH) or in too many pieces, so that `name` proves nothing. */
  readonly hidesName: boolean
}

export const NO_FIRST_BYTES: FirstBytes = { form: 'opaque', name: null, hidesName: false }

export type ConnectionRules = {
  readonly egress: readonly PacketRule[]
  /** Whether a connection that is allowed by name must be one whose requests can be read. */
  readonly strict: boolean
}

/** A TCP connection of a sandbox. */
export type Connection = {
  readonly peer: Cidr
  readonly port: number
  /** The names that the sandbox's own DNS answers tie to the peer's address. */
  readonly tied: readonly string[]
}

/** Null: the connection is allowed. Otherwise why it is refused. */
export type ConnectionRefusal = null | 'address' | 'name' | 'encrypted_name' | 'strict'

/** Whether the first bytes of a connection can change the judgement on it. */
export function needsFirstBytes({ egress }: ConnectionRules, { peer, port }: Connection): boolean {
  return isDecidedByName(egress, { peer, port, protocol: 'tcp' })
}

/**
 * Judges a connection. `isIntercepted` tells whether the requests in its TLS are read. Plain HTTP is judged for the name
 * of each request.
 */
export function judgeConnection(
  rules: ConnectionRules,
  { peer, port, tied }: Connection,
  { form, name, hidesName, isIntercepted }: FirstBytes & { readonly isIntercepted: boolean },
): ConnectionRefusal {
  const packet = { peer, port, protocol: 'tcp' } as const
  const isByName = isDecidedByName(rules.egress, packet)
  if (isByName && hidesName) return 'encrypted_name'
  const rule = findRule(rules.egress, { ...packet, names: { tied, claimed: name } })
  if (rule?.action !== 'allow') return isByName ? 'name' : 'address'
  const isReadable = isIntercepted || form === 'http'
  return rules.strict && rule.name !== undefined && !isReadable ? 'strict' : null
}
