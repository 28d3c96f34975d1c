import type { NamespacedObject } from './org-namespace.ts'
import { LABELS } from '../pod.ts'

/** The value of `LABELS.network` of the policies that workers share. */
const BASE = 'base'

/** Closes the network of each Pod that has a policy of its own, also until that policy exists. Policies add up, so it opens nothing. */
export const CLOSED_POLICY: NamespacedObject = makeBase('sandyard-closed', {
  podSelector: { matchExpressions: [{ key: LABELS.network, operator: 'Exists' }] },
  policyTypes: ['Ingress', 'Egress'],
})

const DNS = { 'kubernetes.io/metadata.name': 'kube-system' }
/**
 * Names and public IPv4 addresses, nothing inbound, for Pods without a policy of their own: those of a worker that was told that the cluster
 * decides, and of earlier versions. `packaging/kubernetes/driver.yaml` has the same.
 */
export const PLAIN_POLICY: NamespacedObject = makeBase('sandyard', {
  podSelector: { matchExpressions: [{ key: LABELS.network, operator: 'DoesNotExist' }] },
  policyTypes: ['Ingress', 'Egress'],
  egress: [
    {
      to: [{ namespaceSelector: { matchLabels: DNS }, podSelector: { matchLabels: { 'k8s-app': 'kube-dns' } } }],
      ports: ['UDP', 'TCP'].map((protocol) => ({ protocol, port: 53 })),
    },
    {
      to: [
        {
          ipBlock: {
            cidr: '0.0.0.0/0',
            except: [
              '0.0.0.0/8',
              '10.0.0.0/8',
              '100.64.0.0/10',
              '127.0.0.0/8',
              '169.254.0.0/16',
              '172.16.0.0/12',
              '192.168.0.0/16',
              '224.0.0.0/3',
            ],
          },
        },
      ],
    },
  ],
})

/** The path of the NetworkPolicies of a namespace. */
export function policiesPath(namespace: string): string {
  return `/apis/networking.k8s.io/v1/namespaces/${namespace}/networkpolicies`
}

function makeBase(name: string, spec: object): NamespacedObject {
  return {
    collection: policiesPath('{namespace}'),
    object: {
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: { name, labels: { [LABELS.network]: BASE } },
      spec,
    },
  }
}
