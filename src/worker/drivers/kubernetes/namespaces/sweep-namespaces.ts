import type { OrgId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { applyObject } from '../../../kubernetes/objects.ts'
import { PLAIN_POLICY, policiesPath } from './base-policies.ts'
import {
  ENFORCED_STANDARD,
  makeNamespace,
  orgNamespaceName,
  type NamespacedObject,
  type OrgNamespace,
} from './org-namespace.ts'
import { LABELS } from '../pod.ts'

type SweepDeps = {
  readonly client: Pick<ApiClient, 'request'>
  /** What the names of organizations' namespaces begin with. */
  readonly base: string
  /** How long a namespace has been without sandboxes before it is deleted, in milliseconds. */
  readonly idleMs: number
  readonly clock: Clock
  readonly log: Log
}

type Namespace = {
  readonly metadata: {
    readonly name: string
    readonly uid: string
    readonly resourceVersion: string
    readonly deletionTimestamp?: string
    readonly labels?: Readonly<Record<string, string>>
    readonly annotations?: Readonly<Record<string, string>>
  }
}
type List<Item> = { readonly items: readonly Item[] }
type Named = { readonly metadata: { readonly name: string } }

/** When the namespace last had something of a worker, to a day: a start writes it at most once in `REFRESH_MS`. */
const USED_AT = 'sandyard.dev/used-at'
/** How old the time of the last use may become while a namespace is in use. It is far below every limit for deletion. */
export const REFRESH_MS = 8 * 3_600_000

/** How many objects of each kind a namespace has that nobody else uses: those of the worker, and those that Kubernetes adds. */
const OWN_COUNTS: Readonly<Record<string, number>> = {
  'count/persistentvolumeclaims': 0,
  'count/secrets': 0,
  'count/services': 0,
  'count/configmaps': 1, // kube-root-ca.crt
  'count/serviceaccounts': 1, // default
  'count/limitranges': 1,
  'count/ingresses.networking.k8s.io': 0,
  'count/deployments.apps': 0,
  'count/statefulsets.apps': 0,
  'count/daemonsets.apps': 0,
  'count/replicasets.apps': 0,
  'count/jobs.batch': 0,
  'count/cronjobs.batch': 0,
}
const OBJECTS_QUOTA = 'sandyard-objects'
/** More than a namespace ever has: the quota counts and doesn't limit. */
const UNLIMITED = '1000000'

/** The quota by which the API server counts the objects of a namespace. The worker may not read them, above all no Secrets. */
export function makeObjectsQuota(): NamespacedObject {
  const hard = Object.fromEntries(Object.keys(OWN_COUNTS).map((kind) => [kind, UNLIMITED]))
  return {
    collection: '/api/v1/namespaces/{namespace}/resourcequotas',
    object: { apiVersion: 'v1', kind: 'ResourceQuota', metadata: { name: OBJECTS_QUOTA }, spec: { hard } },
  }
}

/** Writes that a namespace is in use now, and makes it if another worker has just deleted it. */
export async function touchNamespace(
  deps: Pick<SweepDeps, 'client' | 'clock' | 'log'>,
  namespace: OrgNamespace,
  signal: AbortSignal,
): Promise<void> {
  const object = makeNamespace(namespace, { [USED_AT]: deps.clock.now().toISOString() })
  await applyObject(deps, `/api/v1/namespaces/${namespace.name}`, { object, signal })
}

/**
 * Deletes the namespaces of organizations that had nothing for `idleMs`. Resolves with the organizations. Only a
 * namespace is deleted that has the label and the name of an organization, no Pod, and nothing but what workers make
 * there. A start that uses it meanwhile changes its version, and the deletion names the version that was read.
 */
export async function sweepNamespaces(deps: SweepDeps, signal: AbortSignal): Promise<readonly OrgId[]> {
  const query = new URLSearchParams({ labelSelector: LABELS.org })
  const path = `/api/v1/namespaces?${query.toString()}`
  const { items } = await deps.client.request<List<Namespace>>('GET', path, undefined, { signal })
  const deleted: OrgId[] = []
  for (const namespace of items) {
    const { name, labels, deletionTimestamp } = namespace.metadata
    const org = (labels?.[LABELS.org] ?? '') as OrgId // compared with the name next
    if (deletionTimestamp !== undefined || name !== orgNamespaceName(deps.base, org)) continue
    try {
      if (await deleteIfIdle(deps, { namespace, org }, signal)) deleted.push(org)
    } catch (error) {
      // 403: the namespace is another worker's, and this one has no binding there. 409: it is in use again.
      if (!isApiError(error, 403, 404, 409)) throw error
    }
  }
  return deleted
}

type Candidate = { readonly namespace: Namespace; readonly org: OrgId }

async function deleteIfIdle(deps: SweepDeps, { namespace, org }: Candidate, signal: AbortSignal): Promise<boolean> {
  const { client, clock, idleMs, log } = deps
  const { name, uid, resourceVersion, annotations, labels } = namespace.metadata
  const idleForMs = clock.now().getTime() - Date.parse(annotations?.[USED_AT] ?? '')
  const own = await hasOwnObjectsAlone(deps, name, signal)
  if (own !== true || Number.isNaN(idleForMs)) {
    if (own === null) await applyQuota(deps, name, signal)
    if (!(idleForMs < REFRESH_MS))
      await touchNamespace(deps, { name, org, standard: labels?.[ENFORCED_STANDARD] ?? 'restricted' }, signal)
    return false
  }
  if (idleForMs < idleMs) return false
  const preconditions = { uid, resourceVersion }
  await client.request('DELETE', `/api/v1/namespaces/${name}`, { preconditions }, { signal })
  log.info(
    { namespace: name, days: Math.floor(idleForMs / 86_400_000) },
    'deleted the unused namespace of an organization',
  )
  return true
}

async function applyQuota(deps: SweepDeps, name: string, signal: AbortSignal): Promise<void> {
  const { collection, object } = makeObjectsQuota()
  await applyObject(deps, `${collection.replace('{namespace}', name)}/${OBJECTS_QUOTA}`, { object, signal })
}

/** Whether a namespace has no Pod, no policy of others, and nothing else of them. Null if its objects are not counted. */
async function hasOwnObjectsAlone({ client }: SweepDeps, name: string, signal: AbortSignal): Promise<boolean | null> {
  const path = `/api/v1/namespaces/${name}`
  const pods = await client.request<List<unknown>>('GET', `${path}/pods?limit=1`, undefined, { signal })
  if (pods.items.length > 0) return false
  const used = await readCounts(client, `${path}/resourcequotas/${OBJECTS_QUOTA}`, signal)
  if (used === null) return null
  if (!Object.entries(OWN_COUNTS).every(([kind, count]) => Number(used[kind]) <= count)) return false
  // Workers have a changing number of policies there. All have the label, but for the one that earlier versions made.
  const query = new URLSearchParams({ labelSelector: `!${LABELS.network}`, limit: '2' })
  const policies = await client.request<List<Named>>('GET', `${policiesPath(name)}?${query.toString()}`, undefined, {
    signal,
  })
  return policies.items.every(({ metadata }) => metadata.name === PLAIN_POLICY.object.metadata.name)
}

/** The counts of a quota. Null without the quota, or until they are known. */
async function readCounts(
  client: SweepDeps['client'],
  path: string,
  signal: AbortSignal,
): Promise<Readonly<Record<string, string>> | null> {
  try {
    type Quota = { readonly status?: { readonly used?: Readonly<Record<string, string>> } }
    const { status } = await client.request<Quota>('GET', path, undefined, { signal })
    return status?.used ?? null
  } catch (error) {
    if (isApiError(error, 404)) return null
    throw error
  }
}
