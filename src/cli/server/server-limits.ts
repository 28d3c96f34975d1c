import type { Config } from '../../config.ts'
import { makeRequestLimits, type RequestLimits } from '../../http/requests/request-limits.ts'
import { DEFAULT_SERVER_SETTINGS, type ServerSettings } from '../../http/server/server.ts'
import { systemClock } from '../../lib/clock.ts'

/** The limits of the HTTP server, from the settings: on each caller's requests, and on open connections. */
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
