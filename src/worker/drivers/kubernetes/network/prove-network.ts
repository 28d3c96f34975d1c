import { applyObject } from '../../../kubernetes/objects.ts'
import type { KubernetesDriverInput } from '../context.ts'
import { CLOSED_POLICY } from '../namespaces/base-policies.ts'
import type { NamespaceMode } from '../namespaces/namespaces.ts'
import { runCanary, tryPolicies } from './canary.ts'
import { CANARY_LIMITS } from './canary-pods.ts'
import { requireNoForeignPolicy } from './foreign-policies.ts'
import { requireRulesAdmitted } from './rules-admission.ts'
import { tryRules } from './rules-canary.ts'
import { openNetworkProof, type NetworkProof } from './network-proof.ts'

/** How long the requests beside a canary may take. */
const REQUESTS_MS = 60_000

/**
 * Proves that the cluster enforces what the network of sandboxes is closed with, and closes the network of the
 * sandboxes of a shared namespace, but for what their own policies open. Namespaces of organizations are made with
 * that. Resolves with null if the cluster decides. Rejects in words if the network of a sandbox could be more open than
 * it asks for.
 */
export async function proveNetwork(
  input: KubernetesDriverInput,
  { owner, mode }: { readonly owner: string; readonly mode: NamespaceMode },
): Promise<NetworkProof | null> {
  const { client, namespace, network, random, canaryLimits: limits = CANARY_LIMITS } = input
  if (network === 'cluster') return null
  const newSuffix = (): string => random.bytes(6).toString('hex')
  const deps = { ...input, owner, limits, newSuffix }
  if (network === 'rules') await requireRulesAdmitted(deps, AbortSignal.timeout(REQUESTS_MS))
  // Rules of a Pod hold whatever policies open.
  else if (mode === 'shared') await requireNoForeignPolicy(client, namespace)
  const attempt = network === 'rules' ? tryRules : tryPolicies
  const proof = await openNetworkProof({ ...input, network, runCanary: (signal) => runCanary(deps, signal, attempt) })
  if (mode === 'shared') {
    const { collection, object } = CLOSED_POLICY
    const path = `${collection.replace('{namespace}', namespace)}/${object.metadata.name}`
    await applyObject(input, path, { object, signal: AbortSignal.timeout(REQUESTS_MS) })
  }
  return proof
}
