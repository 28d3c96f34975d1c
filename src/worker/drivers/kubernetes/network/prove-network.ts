import { applyObject } from '../../../kubernetes/objects.ts'
import type { KubernetesDriverInput } from '../context.ts'
import { CLOSED_POLICY } from '../namespaces/base-policies.ts'
import type { NamespaceMode } from '../namespaces/namespaces.ts'
import { runCanary } from './canary.ts'
import { CANARY_LIMITS } from './canary-pods.ts'
import { requireNoForeignPolicy } from './foreign-policies.ts'
import { openNetworkProof, type NetworkProof } from './network-proof.ts'

/** How long the write of the policy of a shared namespace may take. */
const APPLY_MS = 60_000

/**
 * Proves that the cluster enforces NetworkPolicies, and closes the network of the sandboxes of a shared namespace, but for what their own
 * policies open. Namespaces of organizations are made with that. Rejects in words if the network of a sandbox could be more open than it asks for.
 */
export async function proveNetwork(
  input: KubernetesDriverInput,
  { owner, mode }: { readonly owner: string; readonly mode: NamespaceMode },
): Promise<NetworkProof> {
  const { client, namespace, random, canaryLimits: limits = CANARY_LIMITS } = input
  const newSuffix = (): string => random.bytes(6).toString('hex')
  if (mode === 'shared') await requireNoForeignPolicy(client, namespace)
  const proof = await openNetworkProof({
    ...input,
    runCanary: (signal) => runCanary({ ...input, owner, limits, newSuffix }, signal),
  })
  if (mode === 'shared') {
    const { collection, object } = CLOSED_POLICY
    const path = `${collection.replace('{namespace}', namespace)}/${object.metadata.name}`
    await applyObject(input, path, { object, signal: AbortSignal.timeout(APPLY_MS) })
  }
  return proof
}
