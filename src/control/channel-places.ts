import { Problem } from '../domain/problem.ts'
import type { ChannelPlaces } from './deps.ts'

/** The most channels that may be open at once in this process. */
export type ChannelLimits = { readonly perSandbox: number; readonly perOrg: number }

/** Places for channels: of each sandbox, and of each organization over all its sandboxes. */
export function makeChannelPlaces(limits: ChannelLimits): ChannelPlaces {
  const taken = new Map<string, number>()
  let total = 0
  const add = (key: string, change: 1 | -1): void => {
    const count = (taken.get(key) ?? 0) + change
    if (count === 0) taken.delete(key)
    else taken.set(key, count)
  }
  return {
    take({ org_id, id }) {
      const sandbox = `sandbox ${id}`
      const org = `org ${org_id}`
      refuseFull('channels_per_sandbox', 'SANDYARD_CHANNELS_PER_SANDBOX', limits.perSandbox, taken.get(sandbox) ?? 0)
      refuseFull('channels_per_org', 'SANDYARD_CHANNELS_PER_ORG', limits.perOrg, taken.get(org) ?? 0)
      add(sandbox, 1)
      add(org, 1)
      total += 1
      let isHeld = true
      return () => {
        if (!isHeld) return
        isHeld = false
        add(sandbox, -1)
        add(org, -1)
        total -= 1
      }
    },
    get taken() {
      return total
    },
  }
}

/** Seconds after which a refused client may try again: channels last from a moment to days. */
const RETRY_AFTER_SECS = 1

function refuseFull(limit: string, variable: string, max: number, current: number): void {
  if (current < max) return
  const how_to_change = `close channels that are not used; whoever runs this installation can change it: ${variable}`
  throw new Problem('rate_limited', {
    message: `too many requests: ${limit} is ${String(max)} and ${String(current)} are open; ${how_to_change}`,
    details: { limit, max, current, how_to_change },
    retryAfterSeconds: RETRY_AFTER_SECS,
  })
}
