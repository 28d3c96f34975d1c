import { createHash } from 'node:crypto'
import type { Capacity, OrgLimits } from '../../../../contract/workers/worker-protocol.ts'
import type { OrgId } from '../../../../domain/ids.ts'
import { VOLUMES_MAX } from '../../../../domain/volumes/volume.ts'
import { FILES_PODS_PER_ORG, type ClaimSettings } from '../claim.ts'
import type { NetworkMode } from '../network-mode.ts'
import { CLOSED_POLICY, PLAIN_POLICY } from './base-policies.ts'
import { LABELS } from '../pod.ts'

/** The ClusterRole of `packaging/kubernetes/driver.yaml`: what the worker may do in the namespace of an organization. */
export const SANDBOXES_ROLE = 'sandyard-sandboxes'

/** An object of a namespace, and the path of the collection that it is in. */
export type NamespacedObject = {
  readonly collection: string
  readonly object: {
    readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> }
    readonly [field: string]: unknown
  }
}

const RBAC = 'rbac.authorization.k8s.io'
const NAME_MAX = 63
/** The longest id of an organization, with the hyphen before it. */
const ORG_PART = 37

/** The name of an organization's namespace. Throws if the base leaves no space for an organization's id. */
export function orgNamespaceName(base: string, org: string): string {
  if (base.length > NAME_MAX - ORG_PART)
    throw new Error(
      `the namespace ${base} has more than ${String(NAME_MAX - ORG_PART)} characters, so organizations can't have namespaces named after it`,
    )
  return `${base}-${org}`
}

/** The label of a namespace with the Pod Security Standard that its Pods must satisfy. */
export const ENFORCED_STANDARD = 'pod-security.kubernetes.io/enforce'

/** Returns the Pod Security Standard of organizations' namespaces. Only `privileged` admits the capability that loads packet rules. */
export function standardOf(network: NetworkMode): string {
  return network === 'rules' ? 'privileged' : 'restricted'
}

/** What a namespace is made of. `standard` is the Pod Security Standard that it enforces. */
export type OrgNamespace = { readonly name: string; readonly org: OrgId; readonly standard: string }

/** The namespace itself. People who make Pods there by hand are warned of those that aren't `restricted`. */
export function makeNamespace(
  { name, org, standard }: OrgNamespace,
  annotations: Readonly<Record<string, string>> = {},
): object {
  const warning = standard === 'restricted' ? {} : { 'pod-security.kubernetes.io/warn': 'restricted' }
  const labels = { [LABELS.org]: org, [ENFORCED_STANDARD]: standard, ...warning }
  return { apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels, annotations } }
}

/** The binding that gives the worker its rights in the namespace. Each user of the API has one of its own. */
export function makeRoleBinding(user: string): NamespacedObject {
  const digest = createHash('sha256').update(user).digest('hex').slice(0, 16)
  return {
    collection: `/apis/${RBAC}/v1/namespaces/{namespace}/rolebindings`,
    object: {
      apiVersion: `${RBAC}/v1`,
      kind: 'RoleBinding',
      metadata: { name: `sandyard-${digest}` },
      roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: SANDBOXES_ROLE },
      subjects: [{ apiGroup: RBAC, kind: 'User', name: user }],
    },
  }
}

/**
 * What bounds an organization: a quota and limits from its plan, no token in its Pods, and a network of names and public addresses alone.
 * An unlimited value of the plan becomes the capacity of the worker. There may be as many claims as an organization may have volumes,
 * and Pods that serve their files beside those of sandboxes.
 */
export function makeBounds(
  limits: OrgLimits,
  { capacity, claims }: { readonly capacity: Capacity; readonly claims: Pick<ClaimSettings, 'sizeGib'> | null },
): readonly NamespacedObject[] {
  const name = 'sandyard'
  const vcpus = Math.min(limits.max_vcpus_per_sandbox ?? Infinity, capacity.vcpus)
  const memoryMib = Math.min(limits.max_memory_mib_per_sandbox ?? Infinity, capacity.memory_mib)
  const running = limits.max_running
  const [volumes, filesPods] = claims === null ? [0, 0] : [VOLUMES_MAX, FILES_PODS_PER_ORG]
  const most = (each: number, all: number): number => (running === null ? all : Math.min(running * each, all))
  const hard = {
    'limits.cpu': String(most(vcpus, capacity.vcpus)),
    'limits.memory': `${String(most(memoryMib, capacity.memory_mib))}Mi`,
    ...(running === null ? {} : { pods: String(running + filesPods) }),
    persistentvolumeclaims: String(volumes),
    'requests.storage': `${String(volumes * (claims?.sizeGib ?? 0))}Gi`,
  }
  const largest = { cpu: String(vcpus), memory: `${String(memoryMib)}Mi` }
  const core = (resource: string, object: NamespacedObject['object']): NamespacedObject => ({
    collection: `/api/v1/namespaces/{namespace}/${resource}`,
    object: { apiVersion: 'v1', ...object },
  })
  return [
    core('serviceaccounts', {
      kind: 'ServiceAccount',
      metadata: { name: 'default' },
      automountServiceAccountToken: false,
    }),
    core('resourcequotas', { kind: 'ResourceQuota', metadata: { name }, spec: { hard } }),
    core('limitranges', {
      kind: 'LimitRange',
      metadata: { name },
      spec: { limits: [{ type: 'Container', max: largest, default: largest }] },
    }),
    CLOSED_POLICY,
    PLAIN_POLICY,
  ]
}
