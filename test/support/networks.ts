import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { asId, type RunId } from '../../src/domain/ids.ts'
import type { OperatorRanges } from '../../src/domain/network/operator-denials.ts'
import type { NetworkPolicy, NetworkSpec, Rule } from '../../src/domain/spec/spec.ts'
import { parsePublish } from '../../src/domain/workers/publishing.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { localHostCommands } from '../../src/worker/processes/system-calls.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemRandom } from '../../src/lib/random.ts'
import type { SandboxNetworksOptions } from '../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetwork, SandboxNetworks } from '../../src/worker/network/sandbox-network.ts'
import { OUTSIDE, startProber, type Prober } from './network-world.ts'

/** The network of a sandbox whose create request has no network settings. */
export const DEFAULT_NETWORK: NetworkSpec = {
  enabled: true,
  strict: false,
  max_connections: null,
  policy: null,
  secrets: [],
}

/** The decision of an operator who denies nothing. */
export const NO_DENIALS: OperatorRanges = { deny: [], allow: [] }

/** The rule for DNS with which the policies of public clients begin. */
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

/** Options for the sandbox networks of a test. Disposing of the value deletes its new folder. */
export async function networksOptions(
  changes: Partial<SandboxNetworksOptions> = {},
): Promise<SandboxNetworksOptions & AsyncDisposable> {
  const dir = await mkdtemp(join(tmpdir(), 'sandyard-net-'))
  return {
    dir,
    addressPool: '10.209.0.0/16',
    namePrefix: 'test',
    hostResolvers: [OUTSIDE.resolver],
    ownRanges: { addresses: () => [OUTSIDE.hardDenied], rangesOf: () => [] },
    connectionBound: { connections: 4_096, newPerSecond: 200 },
    publish: parsePublish('loopback') ?? [],
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

/** A run's network, and a process inside it. */
export type Inmate = AsyncDisposable & {
  readonly run: RunId
  readonly network: SandboxNetwork
  readonly prober: Prober
  /** The result of a TCP connection to a host: `connected`, `timeout` or an error code. */
  tcp(host: string, port?: number): Promise<string>
}

/**
 * Attaches the network of a run and starts a process in it. Disposing of the value ends the process and the network.
 */
export async function attachInmate(
  networks: SandboxNetworks,
  name: string,
  { operator = NO_DENIALS, ...spec }: NetworkSpec & { readonly operator?: OperatorRanges },
): Promise<Inmate> {
  const run = asId<RunId>(name)
  const network = await networks.attach(run, spec, operator)
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
