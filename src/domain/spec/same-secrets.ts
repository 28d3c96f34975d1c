import { isDeepStrictEqual } from 'node:util'
import type { HostPattern, RunSecret, Secret } from './secrets.ts'

/**
 * Whether two secrets are the same. Of 256 secrets with 256 hosts each, `isDeepStrictEqual` takes ten times as long to compare the hosts
 * as this loop does (2026-11).
 */
export function isSameSecret(one: Secret | RunSecret | undefined, other: Secret | RunSecret | undefined): boolean {
  if (one === undefined || other === undefined) return one === other
  const { allowed_hosts, passthrough_hosts, ...rest } = one
  const { allowed_hosts: otherAllowed, passthrough_hosts: otherPassthrough, ...otherRest } = other
  return (
    hasSameHosts(allowed_hosts, otherAllowed) &&
    hasSameHosts(passthrough_hosts, otherPassthrough) &&
    isDeepStrictEqual(rest, otherRest)
  )
}

/** Whether two lists have the same secrets in the same order. */
export function hasSameSecrets(some: readonly Secret[], others: readonly Secret[]): boolean {
  return some.length === others.length && some.every((secret, index) => isSameSecret(secret, others[index]))
}

/** Whether two lists have the same hosts in the same order. */
export function hasSameHosts(some: readonly HostPattern[], others: readonly HostPattern[]): boolean {
  if (some === others) return true
  return some.length === others.length && some.every((host, index) => isSameHost(host, others[index]))
}

function isSameHost(one: HostPattern, other: HostPattern | undefined): boolean {
  if (one.type !== other?.type) return false
  return one.type === 'any' || other.type === 'any' || one.value === other.value
}
