import type { RunId } from '../../domain/ids.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'

/** The network of one run: a namespace of its own whose traffic its policy governs. */
export type SandboxNetwork = {
  /** Path to give to the runtime as network namespace. */
  readonly netnsPath: string
  /** Null when the network is off: then the namespace holds only a loopback device. */
  readonly ipv4: string | null
  /** Addresses for the sandbox's resolv.conf; empty when the network is off. */
  readonly resolvers: readonly string[]
}

/** Makes and removes the networks of runs; keeps no truth in memory, so that a restarted worker adopts them. */
export interface SandboxNetworks {
  /**
   * Gives a run its network, with the policy in force before it returns; whoever is in it may listen on every port and
   * ping. Repeating it gives the same network.
   */
  attach(run: RunId, spec: NetworkSpec): Promise<SandboxNetwork>
  /** Removes a run's network; an unknown run succeeds. */
  detach(run: RunId): Promise<void>
  /** The runs that have a network here. */
  list(): Promise<readonly RunId[]>
  /** Stops this process's part (ready-made namespaces, DNS forwarder); the networks of runs stay. */
  close(): Promise<void>
}
