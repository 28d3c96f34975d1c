import { createHash } from 'node:crypto'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { dropContained, type Cidr } from '../../../../domain/cidr.ts'
import { compilePolicy, type PacketRule } from '../../../../domain/network/network-policy.ts'
import { addressesOf, deniedAddresses, findDeniedRule } from '../../../../domain/network/operator-denials.ts'
import type { ConnectionBound } from '../../../network/connection-bound.ts'
import type { OwnRanges } from '../../../network/rules/own-ranges.ts'
import { StartError } from '../../../start-error.ts'
import type { NamespacedObject } from '../namespaces/org-namespace.ts'
import { LABELS } from '../pod.ts'
import { compileEgress, RESOLVER, type EgressRule } from './compile-egress.ts'
import type { NetworkMode } from '../network-mode.ts'
import { podRules } from './pod-rules.ts'

/** What the Pod of a run may reach, as a NetworkPolicy. Equal policies of a worker have equal names and labels. */
export type RunPolicy = {
  /** The commands of nft that the Pod loads before its sandbox runs. Null: the policy is all. */
  readonly rules: readonly string[] | null
  /** The value of `LABELS.network` of the Pods that the policy is for. */
  readonly label: string
  readonly object: NamespacedObject['object']
}

export type RunPolicyInput = {
  /** With `rules`, the policy may allow more than the rules of the Pod. */
  readonly network: NetworkMode
  /** The bound of each sandbox with rules. */
  readonly connectionBound: ConnectionBound
  /** The id of the worker's data folder. Each worker has policies of its own, and deletes no others. */
  readonly owner: string
  readonly ownRanges: OwnRanges
  /** The addresses of the cluster's nodes as far as they are known. Nobody can open them. */
  readonly nodeAddresses: () => readonly string[]
}

/**
 * Addresses where a cluster has itself: its API server, its nodes and what runs there. They are closed unless the operator opens a
 * part of them for an organization.
 */
const CLUSTER_RANGES = ['private', 'link_local', 'multicast']
/** How many compiled policies are kept. One takes 10 ms to compile (2 busy cores, 2026-11-26). */
const KEPT = 64
const DIGEST_CHARACTERS = 32

/** Makes the function that returns the policy of a run. It throws `StartError` of reason `config` for what can't be enforced. */
export function makeRunPolicies(
  input: RunPolicyInput,
): (run: Pick<DesiredRun, 'spec' | 'network_ranges'>) => RunPolicy {
  const kept = new Map<string, RunPolicy>()
  return ({ spec: { network }, network_ranges }) => {
    const { deny, allow } = network_ranges
    const denied = deniedAddresses({ deny: [...deny, ...CLUSTER_RANGES], allow }, (word) =>
      input.ownRanges.rangesOf(word),
    )
    const fixed = addressesOf([...input.ownRanges.addresses(), ...input.nodeAddresses()])
    const hardDeny = dropContained([...denied, ...fixed])
    const { enabled, policy, max_connections, max_udp_connections } = network
    const limits = [max_connections, max_udp_connections]
    const key = JSON.stringify([enabled, policy, limits, hardDeny.map(({ first, prefix }) => [String(first), prefix])])
    const known = kept.get(key)
    if (known !== undefined) return known
    const ordered = enabled ? orderedRules(policy, hardDeny) : []
    const egress = policyRules(ordered, input.network)
    const made = {
      ...makePolicy(input.owner, egress),
      rules: input.network === 'rules' ? podRules(ordered, { limits: network, bound: input.connectionBound }) : null,
    }
    const [oldest] = kept.keys()
    if (kept.size >= KEPT && oldest !== undefined) kept.delete(oldest)
    kept.set(key, made)
    return made
  }
}

type Policy = DesiredRun['spec']['network']['policy']

function orderedRules(policy: Policy, hardDeny: readonly Cidr[]): readonly PacketRule[] {
  const rules = policy?.rules ?? []
  const refused = findDeniedRule(rules, hardDeny)
  if (refused !== null)
    throw new StartError(
      'config',
      `network.policy.rules[${String(refused)}]: this worker's cluster may have itself there, so its operator must open the addresses to your organization`,
    )
  const named = rules.findIndex(
    ({ destination }) => typeof destination === 'object' && !('group' in destination) && !('cidr' in destination),
  )
  if (named !== -1)
    throw new StartError(
      'config',
      `network.policy.rules[${String(named)}].destination: this worker knows no rules by name`,
    )
  return compilePolicy(policy, { gateway: RESOLVER, hardDeny }).egress
}

function policyRules(ordered: readonly PacketRule[], network: NetworkMode): readonly EgressRule[] {
  const { egress, isExact } = compileEgress(ordered)
  if (!isExact && network !== 'rules')
    throw new StartError(
      'config',
      'network.policy.rules: on this worker, no address can be open to ICMP and closed to TCP or UDP, or to a part of their ports. Give the rules that allow protocols: tcp, udp',
    )
  return egress
}

function makePolicy(owner: string, egress: readonly EgressRule[]): Omit<RunPolicy, 'rules'> {
  const digest = createHash('sha256')
    .update(JSON.stringify([owner, egress]))
    .digest('hex')
  const label = digest.slice(0, DIGEST_CHARACTERS)
  return {
    label,
    object: {
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: { name: `sandyard-${label}`, labels: { [LABELS.owner]: owner, [LABELS.network]: label } },
      spec: { podSelector: { matchLabels: { [LABELS.network]: label } }, policyTypes: ['Ingress', 'Egress'], egress },
    },
  }
}
