import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { asId, type RunId } from '../../src/domain/ids.ts'
import type { NetworkPolicy, NetworkSpec, Rule } from '../../src/domain/spec/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { localHostCommands } from '../../src/worker/processes/system-calls.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import type { SandboxNetworksOptions } from '../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetwork, SandboxNetworks } from '../../src/worker/network/sandbox-network.ts'
import { OUTSIDE, startProber, type Prober } from './network-world.ts'

/** The network of a request without network settings. */
export const DEFAULT_NETWORK: NetworkSpec = {
  enabled: true,
  strict: false,
  max_connections: null,
  policy: null,
  secrets: [],
}

/** The DNS rule that real clients put first. */
export const DNS_RULE: Rule = {
  direction: 'egress',
  destination: { group: 'host' },
  action: 'allow',
  ports: [{ start: 53, end: 53 }],
  protocols: ['udp', 'tcp'],
}

/** A network with these egress rules that denies everything else. */
export function networkWith(rules: readonly Partial<Rule>[], policy: Partial<NetworkPolicy> = {}): NetworkSpec {
  const blank: Rule = { direction: 'egress', destination: 'any', action: 'allow', ports: [], protocols: [] }
  return {
    ...DEFAULT_NETWORK,
    policy: {
      default_egress: 'deny',
      default_ingress: 'deny',
      rules: rules.map((rule) => ({ ...blank, ...rule })),
      ...policy,
    },
  }
}

/** Options for the networks of a test, in a new folder that is deleted with the value. */
export async function networksOptions(
  changes: Partial<SandboxNetworksOptions> = {},
): Promise<SandboxNetworksOptions & AsyncDisposable> {
  const dir = await mkdtemp(join(tmpdir(), 'sandyard-net-'))
  return {
    dir,
    addressPool: '10.209.0.0/16',
    namePrefix: 'test',
    hostResolvers: [OUTSIDE.resolver],
    hardDeny: [OUTSIDE.hardDenied],
    hasRebindProtection: true,
    prewarmCount: 1,
    commands: localHostCommands,
    clock: systemClock,
    random: systemRandom,
    log: makeLog('warn'),
    ...changes,
    [Symbol.asyncDispose]: () => rm(dir, { recursive: true, force: true }),
  }
}

/** A run with its network, and a process inside. */
export type Inmate = AsyncDisposable & {
  readonly run: RunId
  readonly network: SandboxNetwork
  readonly prober: Prober
  /** The result of a TCP connection to a host: `connected`, `timeout` or an error code. */
  tcp(host: string, port?: number): Promise<string>
}

/** Attaches a run and starts a process in its network. Both end with the value. */
export async function attachInmate(networks: SandboxNetworks, name: string, spec: NetworkSpec): Promise<Inmate> {
  const run = asId<RunId>(name)
  const network = await networks.attach(run, spec)
  const prober = startProber(network.netnsPath)
  return {
    run,
    network,
    prober,
    tcp: (host, port = 80) => prober.ask({ kind: 'tcp', host, port }),
    [Symbol.asyncDispose]: async () => {
      await prober.close()
      await networks.detach(run)
    },
  }
}
