import type { Config } from '../../config.ts'
import { readStoredProof, type ProvedMode } from '../../worker/drivers/kubernetes/network/stored-proof.ts'
import { kubernetesFolder } from './open-kubernetes-driver.ts'

const PROVED: Readonly<Record<ProvedMode, string>> = { prove: 'NetworkPolicies', rules: 'the rules of Pods' }

/**
 * Says what the worker's last canary found out about its cluster's NetworkPolicies, or the packet rules of its Pods,
 * and when, as the data folder has it. Asks no cluster. Throws if the cluster did not enforce them: the worker then
 * starts no sandboxes.
 */
export async function describeNetworkProof(config: Pick<Config, 'dataDir' | 'kubernetesNetwork'>): Promise<string> {
  const { kubernetesNetwork: network } = config
  if (network === 'cluster')
    return 'the cluster alone decides what sandboxes reach, because SANDYARD_KUBERNETES_NETWORK is cluster'
  const proof = await readStoredProof({ dir: kubernetesFolder(config), network })
  const proved = PROVED[network]
  if (proof === null)
    return `whether the cluster enforces ${proved} is not proved yet: the worker tries it when it starts`
  if (proof.kind === 'enforced') return `the cluster enforced ${proved} when the worker last tried it, at ${proof.at}`
  throw new Error(`the cluster did not enforce ${proved} when the worker last tried it, at ${proof.at}: ${proof.seen}`)
}
