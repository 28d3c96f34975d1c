import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { asId, type RunId } from '../../../src/domain/ids.ts'
import { DEFAULT_POLICY } from '../../../src/domain/network-policy.ts'
import type { NetworkSpec, Rule } from '../../../src/domain/spec.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeNetworks, type NetworksOptions } from '../../../src/worker/network/make-networks.ts'
import type { SandboxNetwork, SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { makeOutsideWorld, OUTSIDE, startProber, type Prober } from '../../support/network-world.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

const OPEN: NetworkSpec = { enabled: true, strict: false, max_connections: null, policy: null, secrets: [] }

if (isInOwnNetwork(import.meta.filename)) {
  describe('a sandbox network', () => {
    let options: NetworksOptions
    let networks: SandboxNetworks
    let world: Prober

    before(async () => {
      world = await makeOutsideWorld()
      options = {
        dir: await mkdtemp(join(tmpdir(), 'sandyard-net-')),
        pool: '10.209.0.0/16',
        namePrefix: 'tst',
        hostResolvers: [OUTSIDE.resolver],
        hardDeny: [],
        hasRebindProtection: true,
        readyAhead: 2,
        clock: systemClock,
        random: systemRandom,
        log: makeLog('warn'),
      }
      networks = await makeNetworks(options)
    })
    after(async () => {
      await networks.close()
      await world.close()
      await rm(options.dir, { recursive: true, force: true })
    })

    test('the default policy lets public addresses and DNS through', async () => {
      const run = asId<RunId>('run-default')
      const network = await networks.attach(run, OPEN)
      const prober = startProber(network.netnsPath)
      console.error(
        network,
        await prober.ask({ kind: 'tcp', host: OUTSIDE.public, port: 80 }),
        await prober.ask({ kind: 'tcp', host: OUTSIDE.private, port: 80 }),
        await prober.ask({ kind: 'tcp', host: OUTSIDE.metadata, port: 80 }),
        await prober.ask({ kind: 'tcp', host: OUTSIDE.hostPublic, port: 80 }),
        await prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 80 }),
        await prober.ask({ kind: 'resolve', server: network.resolvers[0] ?? '', name: 'a.example.com' }),
        await prober.ask({ kind: 'resolve', server: network.resolvers[0] ?? '', name: 'rebind.example.com' }),
      )
      await prober.close()
      await networks.detach(run)
    })
  })
}
