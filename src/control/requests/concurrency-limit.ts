import type { SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import { Problem } from '../../domain/problem.ts'

/** Limits how many long-lived objects, such as streams, this process has open at once. */
export type ConcurrencyLimit<Of> = {
  /**
   * Acquires one permit, or `weight` permits at once, and returns the function that releases them. You may call that
   * function repeatedly. Throws `rate_limited`, naming the limit that is reached.
   */
  acquire(of: Of, weight?: number): () => void
  readonly permitsInUse: number
}

/** A limit on the permits in use for each key, such as each organization. */
export type KeyedLimit<Of> = {
  /** The name of the limit in refusals. */
  readonly name: string
  /** The setting that changes the limit. */
  readonly variable: string
  readonly max: number
  readonly keyOf: (of: Of) => string
}

/**
 * The maximum number of command channels that this process has open at once, for each sandbox and for each
 * organization.
 */
export type ChannelLimits = { readonly perSandbox: number; readonly perOrg: number }

/** Limits channels by sandbox, and by organization over all its sandboxes. */
export function makeChannelLimit({ perSandbox, perOrg }: ChannelLimits): ConcurrencyLimit<SandboxKey> {
  const sandbox = { name: 'channels_per_sandbox', variable: 'SANDYARD_CHANNELS_PER_SANDBOX', max: perSandbox }
  const org = { name: 'channels_per_org', variable: 'SANDYARD_CHANNELS_PER_ORG', max: perOrg }
  return makeConcurrencyLimit<SandboxKey>(
    [
      { ...sandbox, keyOf: ({ id }) => id },
      { ...org, keyOf: ({ org_id }) => org_id },
    ],
    'close unused channels',
  )
}

/** The maximum number of log streams that this process has open at once, for each organization and in all. */
export type LogStreamLimits = { readonly perOrg: number; readonly inAll: number }

/** Limits log streams by organization, so that no organization can use up the limit of the whole process. */
export function makeLogStreamLimit({ perOrg, inAll }: LogStreamLimits): ConcurrencyLimit<Pick<SandboxKey, 'org_id'>> {
  const org = { name: 'log_streams_per_org', variable: 'SANDYARD_LOG_STREAMS_PER_ORG', max: perOrg }
  const all = { name: 'log_streams', variable: 'SANDYARD_LOG_STREAM_CAPACITY', max: inAll }
  return makeConcurrencyLimit<Pick<SandboxKey, 'org_id'>>(
    [
      { ...org, keyOf: ({ org_id }) => org_id },
      { ...all, keyOf: () => 'all' },
    ],
    'end unused log streams',
  )
}

/** Combines several limits and checks them in their order. `advice` tells a refused client what to do. */
export function makeConcurrencyLimit<Of>(limits: readonly KeyedLimit<Of>[], advice: string): ConcurrencyLimit<Of> {
  const counted = limits.map((limit) => ({ limit, counts: new Map<string, number>() }))
  let permitsInUse = 0
  return {
    acquire(of, weight = 1) {
      const shares = counted.map(({ limit, counts }) => ({ limit, counts, key: limit.keyOf(of) }))
      for (const { limit, counts, key } of shares)
        refuseAtLimit(limit, { current: counts.get(key) ?? 0, weight }, advice)
      const change = (by: number): void => {
        permitsInUse += by
        for (const { counts, key } of shares) {
          const count = (counts.get(key) ?? 0) + by
          if (count === 0) counts.delete(key)
          else counts.set(key, count)
        }
      }
      change(weight)
      let isHeld = true
      return () => {
        if (isHeld) change(-weight)
        isHeld = false
      }
    },
    get permitsInUse() {
      return permitsInUse
    },
  }
}

/** The `Retry-After` of a refusal, in seconds. It is short because a permit may be released at any moment. */
const RETRY_AFTER_SECS = 1

type Named = Pick<KeyedLimit<unknown>, 'name' | 'variable' | 'max'>

function refuseAtLimit(
  { name, variable, max }: Named,
  { current, weight }: { readonly current: number; readonly weight: number },
  advice: string,
): void {
  if (current + weight <= max) return
  const how_to_change = `${advice}; the operator can change it with ${variable}`
  throw new Problem('rate_limited', {
    message: `too many requests: ${name} is ${String(max)} and ${String(current)} are in use; ${how_to_change}`,
    details: { limit: name, max, current, how_to_change },
    retryAfterSeconds: RETRY_AFTER_SECS,
  })
}
