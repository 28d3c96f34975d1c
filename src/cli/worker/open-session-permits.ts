import type { Config } from '../../config.ts'
import { descriptorLimit } from '../../lib/descriptor-limit.ts'
import type { Log } from '../../lib/log.ts'
import { makeSessionPermits, sessionLimitsFor, type SessionPermits } from '../../worker/channel/session-permits.ts'

/** Makes the permits for sessions of a worker. Logs if its limit of open files allows fewer of them than the settings. */
export function openSessionPermits(
  { sessionsPerSandbox: perSandbox, sessionsPerOrg: perOrg }: Pick<Config, 'sessionsPerSandbox' | 'sessionsPerOrg'>,
  log: Log,
): SessionPermits {
  const openFiles = descriptorLimit()
  const limits = sessionLimitsFor(openFiles, { perSandbox, perOrg })
  if (limits.perOrg < perOrg || limits.perSandbox < perSandbox)
    log.warn({ ...limits, open_files: openFiles }, 'the limit of open files lowers the limits of sessions')
  return makeSessionPermits(limits)
}
