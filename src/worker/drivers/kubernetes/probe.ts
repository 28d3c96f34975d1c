import { isIP } from 'node:net'
import type { Ability } from '../../../domain/abilities.ts'
import { isolationAbilities, type IsolationLevel } from '../../../domain/isolation.ts'
import { isApiError } from '../../kubernetes/api-error.ts'
import type { ApiClient } from '../../kubernetes/api-client.ts'
import { parseQuantity } from '../../kubernetes/quantity.ts'
import type { Capacity } from '../../../contract/workers/worker-protocol.ts'
import type { Probe } from '../driver.ts'
import type { NetworkMode } from './network-mode.ts'
import { readRuntimeClass, type RuntimeClass } from './runtime-class.ts'

/** What a Pod enforces. Everything else is refused by name, but for what the cluster must have: `CLAIM_ABILITIES` and `NETWORK_ABILITIES`. */
export const KUBERNETES_ABILITIES: readonly Ability[] = [
  'patches',
  'rlimits',
  'tmpfs',
  'hostname',
  'scripts',
  'security_restricted',
]
/** What a worker enforces whose cluster makes claims. */
export const CLAIM_ABILITIES: readonly Ability[] = ['named_mounts', 'bind_mounts']
/** What a worker enforces of networks once that is proved. */
export const NETWORK_ABILITIES: Readonly<Record<NetworkMode, readonly Ability[]>> = {
  prove: ['network_off', 'network_policy'],
  rules: ['network_off', 'network_policy', 'network_max_connections', 'network_max_udp_connections'],
  cluster: [],
}
const NETWORKS: Readonly<Record<NetworkMode, string>> = {
  prove: 'NetworkPolicies that the cluster enforces',
  rules: 'packet rules in the network namespace of each Pod',
  cluster: 'their network is the one of the cluster',
}

type Node = {
  readonly spec?: { readonly unschedulable?: boolean }
  readonly status?: {
    readonly addresses?: readonly { readonly address: string }[]
    readonly allocatable?: Readonly<Record<string, string>>
    readonly runtimeHandlers?: readonly {
      readonly name?: string
      readonly features?: { readonly userNamespaces?: boolean | null } | null
    }[]
  }
}
type Quota = { readonly status?: { readonly hard?: Readonly<Record<string, string>> } }
type List<Item> = { readonly items: readonly Item[] }

/** What the driver asks the cluster about itself. */
export type ClusterFacts = {
  readonly capacity: Capacity
  /** Whether every node can give Pods users of their own. */
  readonly hasOwnUsers: boolean
  /** The IP addresses of the nodes. Empty if the worker may not list nodes. */
  readonly nodeAddresses: readonly string[]
  readonly runtimeClass: RuntimeClass | null
  readonly level: IsolationLevel
}

/**
 * Reads how much the namespace's quotas allow or, without quotas, how much the nodes have. Rejects in words if the worker may read neither.
 */
export async function readClusterFacts(
  client: Pick<ApiClient, 'request'>,
  { namespace, runtimeClass: wanted }: { readonly namespace: string; readonly runtimeClass: string | null },
): Promise<ClusterFacts> {
  const runtimeClass = wanted === null ? null : await readRuntimeClass(client, wanted)
  const [quotas, nodes] = await Promise.all([
    listIfAllowed<Quota>(client, `/api/v1/namespaces/${namespace}/resourcequotas`),
    listIfAllowed<Node>(client, '/api/v1/nodes'),
  ])
  const usable = nodes?.filter(({ spec }) => spec?.unschedulable !== true) ?? []
  const hasOwnUsers =
    usable.length > 0 &&
    usable.every(({ status }) =>
      status?.runtimeHandlers?.some(
        ({ name = '', features }) => name === (runtimeClass?.handler ?? '') && features?.userNamespaces === true,
      ),
    )
  const ofQuotas = (resource: string): number[] =>
    (quotas ?? []).flatMap(({ status }) =>
      [`limits.${resource}`, `requests.${resource}`, resource].flatMap(
        (name) => parseQuantity(status?.hard?.[name]) ?? [],
      ),
    )
  const ofNodes = (resource: string): number =>
    usable.reduce((sum, { status }) => sum + (parseQuantity(status?.allocatable?.[resource]) ?? 0), 0)
  const most = (resource: string): number =>
    Math.min(...ofQuotas(resource), ...(nodes === null ? [] : [ofNodes(resource)]))
  const capacity = {
    vcpus: Math.floor(most('cpu')),
    memory_mib: Math.floor(most('memory') / 1024 ** 2),
    disk_mib: null,
  }
  if (!Number.isFinite(capacity.vcpus) || !Number.isFinite(capacity.memory_mib))
    throw new Error(
      `the capacity is unknown: give namespace ${namespace} a ResourceQuota with limits.cpu and limits.memory, or let the worker list nodes`,
    )
  const named = (nodes ?? []).flatMap(({ status }) => status?.addresses?.map(({ address }) => address) ?? [])
  const nodeAddresses = named.filter((address) => isIP(address) !== 0)
  return { capacity, hasOwnUsers, nodeAddresses, runtimeClass, level: runtimeClass?.level ?? 'container' }
}

/** Reports the abilities of Pods and the capacity of the cluster. */
export function reportOf(
  { capacity, level }: ClusterFacts,
  {
    isolation,
    hasClaims,
    network,
    isProved,
  }: {
    readonly isolation: string
    readonly hasClaims: boolean
    readonly network: NetworkMode
    /** Whether it is proved that networks are enforced in this way. */
    readonly isProved: boolean
  },
): Probe {
  return {
    report: {
      name: 'kubernetes',
      isolation,
      abilities: [
        ...KUBERNETES_ABILITIES,
        ...(hasClaims ? CLAIM_ABILITIES : []),
        ...(isProved ? NETWORK_ABILITIES[network] : []),
        ...isolationAbilities(level),
      ],
      images: [],
      default_disk_mib: 1,
      keeps_disks: false,
      runs_outlive_worker: true,
    },
    capacity,
  }
}

/** Describes in words what separates sandboxes. */
export function describeIsolation(
  namespaces: string,
  {
    hasOwnUsers,
    runtimeClass,
    network,
  }: Pick<ClusterFacts, 'hasOwnUsers' | 'runtimeClass'> & { readonly network: NetworkMode },
): string {
  const runtime = runtimeClass === null ? '' : `RuntimeClass ${runtimeClass.name}, `
  const users = hasOwnUsers ? 'user namespaces, ' : ''
  return `Pods in ${namespaces}: ${runtime}containers without root and capabilities, ${users}seccomp; ${NETWORKS[network]}`
}

async function listIfAllowed<Item>(client: Pick<ApiClient, 'request'>, path: string): Promise<readonly Item[] | null> {
  try {
    return (await client.request<List<Item>>('GET', path)).items
  } catch (error) {
    if (isApiError(error, 401, 403)) return null
    throw error
  }
}
