import type { Config } from '../../config.ts'
import { makeRequestLimits, type RequestLimits } from '../../http/requests/request-limits.ts'
import { DEFAULT_SERVER_SETTINGS, type ServerSettings } from '../../http/server/server.ts'
import { systemClock } from '../../lib/clock.ts'

/** What the settings let the callers of a server do: what each may send, and how many connections there may be. */
export function serverLimits(config: Config): { readonly settings: ServerSettings; readonly limits: RequestLimits } {
  const rates = {
    key: { perSec: config.keyRequestsPerSec, burst: config.keyRequestBurst },
    org: { perSec: config.orgRequestsPerSec, burst: config.orgRequestBurst },
    failedAuthentications: { perSec: config.refusedKeysPerSec, burst: config.refusedKeyBurst },
  }
  const connections = {
    ...DEFAULT_SERVER_SETTINGS.connections,
    capacity: config.connectionCapacity,
    perAddress: config.connectionsPerAddress,
  }
  return {
    settings: { ...DEFAULT_SERVER_SETTINGS, connections },
    limits: makeRequestLimits({ ...config, rates }, systemClock),
  }
}
