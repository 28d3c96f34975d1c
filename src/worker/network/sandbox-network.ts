import type { RunId } from '../../domain/ids.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'

/** The network of one run: a namespace of its own, whose traffic the run's policy governs. */
export type SandboxNetwork = {
  /** The path of the network namespace for the runtime. */
  readonly netnsPath: string
  /** Null when the network is off; the namespace then has only a loopback device. */
  readonly ipv4: string | null
  /** The addresses for the sandbox's resolv.conf. Empty when the network is off. */
  readonly resolvers: readonly string[]
}

/** Creates and removes the networks of runs. It keeps no state in memory, so a restarted worker adopts them. */
export interface SandboxNetworks {
  /**
   * Gives a run its network. The policy applies before this resolves. Programs in it may listen on every port and ping.
   * Repeating it returns the same network.
   */
  attach(run: RunId, spec: NetworkSpec): Promise<SandboxNetwork>
  /** Removes a run's network. An unknown run is fine. */
  detach(run: RunId): Promise<void>
  /** The runs that have a network on this machine. */
  list(): Promise<readonly RunId[]>
  /** Stops this process's part: ready namespaces and the DNS forwarder. The networks of runs stay. */
  close(): Promise<void>
}
