/** How many sessions may be open at once. A session is a command, a TCP connection or the file helper of one client. */
export type SessionLimits = {
  readonly perSandbox: number
  readonly perOrg: number
  /** The maximum of this worker, whoever opened the sessions. */
  readonly total: number
}

/** Whose session is to be opened. */
export type SessionOwner = { readonly sandbox: string; readonly org: string }

/** A concurrency limit for sessions, which all channels of a worker share. */
export type SessionPermits = {
  /** Takes a permit and returns its release function, which may be called repeatedly. Throws `SessionLimitReached`. */
  acquire(owner: SessionOwner): () => void
}

/** The refusal of a session. The client receives the message, which names the limit and its setting. */
export class SessionLimitReached extends Error {}

/** How many descriptors of the worker a session holds: three pipes, and one more while it starts. */
const DESCRIPTORS_PER_SESSION = 4

/**
 * Returns the limits for a process that may have `descriptorLimit` open descriptors. All sessions together use at most half of
 * them. One organization gets at most half of these sessions, so that another one can always open some.
 */
export function sessionLimitsFor(
  descriptorLimit: number,
  wanted: { readonly perSandbox: number; readonly perOrg: number },
): SessionLimits {
  const total = Math.floor(descriptorLimit / 2 / DESCRIPTORS_PER_SESSION)
  const perOrg = Math.min(wanted.perOrg, Math.floor(total / 2))
  return { perSandbox: Math.min(wanted.perSandbox, perOrg), perOrg, total }
}

/** Creates permits. Each limit counts for itself, and a refused session counts nowhere. */
export function makeSessionPermits(limits: SessionLimits): SessionPermits {
  const ofSandbox = new Map<string, number>()
  const ofOrg = new Map<string, number>()
  let total = 0
  return {
    acquire({ sandbox, org }) {
      const refuse = (who: string, most: number, setting: string): never => {
        throw new SessionLimitReached(
          `too many open sessions: ${who} has ${String(most)}, the most it may have (${setting})`,
        )
      }
      if ((ofSandbox.get(sandbox) ?? 0) >= limits.perSandbox)
        refuse('this sandbox', limits.perSandbox, 'SANDYARD_SESSIONS_PER_SANDBOX')
      if ((ofOrg.get(org) ?? 0) >= limits.perOrg)
        refuse('this organization', limits.perOrg, 'SANDYARD_SESSIONS_PER_ORG')
      if (total >= limits.total) refuse('this worker', limits.total, 'its limit of open files')
      add(ofSandbox, sandbox, 1)
      add(ofOrg, org, 1)
      total++
      let isHeld = true
      return () => {
        if (!isHeld) return
        isHeld = false
        add(ofSandbox, sandbox, -1)
        add(ofOrg, org, -1)
        total--
      }
    },
  }
}

function add(counts: Map<string, number>, key: string, by: number): void {
  const count = (counts.get(key) ?? 0) + by
  if (count === 0) counts.delete(key)
  else counts.set(key, count)
}
