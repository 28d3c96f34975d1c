import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { hostOfUrl, makeResolvedHosts } from '../../lib/outbound/resolved-hosts.ts'
import { readHostResolvers } from '../../worker/network/dns/dns-upstream.ts'
import { makeOwnRanges, type OwnRanges } from '../../worker/network/rules/own-ranges.ts'
import { readIdentity } from './worker-identity.ts'

/** Finds the addresses that this worker denies to its sandboxes: its own, its resolvers' and its control plane's. */
export async function openOwnRanges(config: Config, log: Log): Promise<OwnRanges> {
  const url = config.join ?? (await readIdentity(config.dataDir))?.joined?.url ?? null
  const host = url === null ? null : hostOfUrl(url)
  const controlPlane = makeResolvedHosts({ clock: systemClock, log }, () => (host === null ? [] : [host]))
  await controlPlane.refresh()
  return makeOwnRanges({
    resolvers: await readHostResolvers(),
    controlPlane: () => controlPlane.addresses(),
    clock: systemClock,
  })
}
