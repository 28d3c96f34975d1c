import type { Config } from '../../config.ts'
import { readStoredProof } from '../../worker/drivers/kubernetes/network/stored-proof.ts'
import { kubernetesFolder } from './open-kubernetes-driver.ts'

/**
 * Says what the worker's last canary found out about its cluster's NetworkPolicies, and when, as the data folder has it. Asks no cluster. Throws if
 * the cluster did not enforce them: the worker then starts no sandboxes.
 */
export async function describeNetworkProof(config: Pick<Config, 'dataDir' | 'kubernetesNetwork'>): Promise<string> {
  if (config.kubernetesNetwork === 'cluster')
    return 'the cluster alone decides what sandboxes reach, because SANDYARD_KUBERNETES_NETWORK is cluster'
  const proof = await readStoredProof(kubernetesFolder(config))
  if (proof === null)
    return 'whether the cluster enforces NetworkPolicies is not proved yet: the worker tries it when it starts'
  if (proof.kind === 'enforced')
    return `the cluster enforced NetworkPolicies when the worker last tried it, at ${proof.at}`
  throw new Error(
    `the cluster did not enforce NetworkPolicies when the worker last tried it, at ${proof.at}: ${proof.seen}`,
  )
}
