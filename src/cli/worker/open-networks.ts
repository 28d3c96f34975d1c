import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { systemRandom } from '../../lib/random.ts'
import { connectionBound, readConnectionTableSize } from '../../worker/network/connection-bound.ts'
import { readHostResolvers } from '../../worker/network/dns/dns-upstream.ts'
import { openSandboxNetworks, type SandboxNetworksOptions } from '../../worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../worker/network/sandbox-network.ts'
import type { DriverDeps } from './worker-storage.ts'

/** Opens the networks of sandboxes, with the settings of this worker. */
export async function openNetworks(
  config: Config,
  {
    folder,
    ownRanges,
    log,
    commands,
  }: Pick<DriverDeps, 'folder' | 'ownRanges' | 'log'> & Pick<SandboxNetworksOptions, 'commands'>,
): Promise<SandboxNetworks> {
  return openSandboxNetworks({
    dir: join(config.dataDir, 'network'),
    addressPool: config.networkPool,
    namePrefix: folder.namePrefix,
    hostResolvers: await readHostResolvers(),
    ownRanges,
    connectionBound: connectionBound(config.connectionsPerSandbox, await readConnectionTableSize()),
    publish: config.publish ?? [],
    hasRebindProtection: true,
    prewarmCount: config.readyAhead,
    commands,
    clock: systemClock,
    random: systemRandom,
    log,
  })
}
