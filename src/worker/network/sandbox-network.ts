import type { RunId } from '../../domain/ids.ts'
import type { OperatorRanges } from '../../domain/network/operator-denials.ts'
import type { EgressSecrets } from '../../domain/network/interception.ts'
import type { NetworkSpec } from '../../domain/spec/spec.ts'
import type { PublishRange } from '../../domain/workers/publishing.ts'
import type { PublishedPort } from '../../domain/spec/published-ports.ts'

import type { EgressRefusal } from '../egress/messages.ts'

/** The network of one run. It is a network namespace of its own, whose traffic is filtered by the run's policy. */
export type SandboxNetwork = {
  /** The path of the network namespace, which the container runtime joins. */
  readonly netnsPath: string
  /** The sandbox's address. Null when the network is off. The namespace then has only a loopback device. */
  readonly ipv4: string | null
  /** The DNS resolvers for the sandbox's resolv.conf. Empty when the network is off. */
  readonly resolvers: readonly string[]
  /** The ports that this machine listens on for the sandbox, with those that were picked. */
  readonly published: readonly PublishedPort[]
}

/**
 * Creates and removes the networks of runs. All state is in the kernel and on disk, so a restarted worker adopts
 * existing networks.
 */
export interface SandboxNetworks {
  /** Whether this machine can judge connections by the names of their peers. If not, `attach` must not be asked for it. */
  readonly canJudgeNames: boolean
  /** Where sandboxes may publish ports on this machine. */
  readonly publishes: readonly PublishRange[]
  /**
   * Creates a run's network. The policy is in effect before the promise resolves. Programs in the sandbox may listen on
   * every port and send pings. `operator` is judged before the policy. A repeated call returns the same network.
   */
  attach(run: RunId, spec: NetworkSpec, operator: OperatorRanges, given?: EgressSecrets): Promise<SandboxNetwork>
  /** Replaces the secrets of a run, for its new connections. A run that was attached without needing any ignores them. */
  setSecrets(run: RunId, given: EgressSecrets): Promise<void>
  /** Calls `listener` for each connection that was cut by its name, its request or a secret. */
  onRefused(listener: (run: RunId, refusal: EgressRefusal) => void): void
  /**
   * Closes the ports of a run that has ended. Call it before the end is reported, because the ports then belong to other
   * sandboxes. An unknown run is fine.
   */
  unpublish(run: RunId): Promise<void>
  /** Removes a run's network. An unknown run is fine. */
  detach(run: RunId): Promise<void>
  /** The runs that have a network on this machine. */
  list(): Promise<readonly RunId[]>
  /** How many namespaces are ready for later starts, and how many further networks the address pool has space for. */
  use(): { readonly ready: number; readonly free: number }
  /** Stops the DNS forwarder and removes unused namespaces. The networks of runs stay. */
  close(): Promise<void>
}
