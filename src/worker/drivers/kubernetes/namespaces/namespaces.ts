import type { Capacity, DesiredRun, OrgLimits } from '../../../../contract/workers/worker-protocol.ts'
import type { OrgId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import { makeKeyedMutex } from '../../../../lib/turns/keyed-mutex.ts'
import type { Log } from '../../../../lib/log.ts'
import { repeat } from '../../../../lib/turns/repeat.ts'
import { findMissingRights, readOwnUser, type Right } from '../../../kubernetes/access-review.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { ApiError, isApiError } from '../../../kubernetes/api-error.ts'
import { applyObject, createObject } from '../../../kubernetes/objects.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { makeObjectsQuota, REFRESH_MS, sweepNamespaces, touchNamespace } from './sweep-namespaces.ts'
import { StartError } from '../../../start-error.ts'
import type { ClaimSettings } from '../claim.ts'
import type { NetworkMode } from '../network-mode.ts'
import {
  ENFORCED_STANDARD,
  makeBounds,
  makeNamespace,
  makeRoleBinding,
  orgNamespaceName,
  SANDBOXES_ROLE,
  standardOf,
  type NamespacedObject,
} from './org-namespace.ts'
import { LABELS } from '../pod.ts'

/** Who shares a namespace: all organizations of the worker (`shared`), or nobody (`organization`). */
export type NamespaceMode = 'shared' | 'organization'

/** The namespaces of the worker's Pods. */
export type SandboxNamespaces = {
  readonly mode: NamespaceMode
  /** The path of all Pods that the worker may have. */
  readonly podsPath: string
  /** The namespaces in words. */
  readonly description: string
  nameOf(org: OrgId): string
  /**
   * Makes the organization's namespace with its bounds, or changes the bounds to its plan. Does nothing in a shared namespace. Rejects with
   * `StartError` if the cluster has another namespace of the name, or refuses.
   */
  prepare(run: Pick<DesiredRun, 'org_id' | 'org_limits'>, signal: AbortSignal): Promise<void>
  /**
   * Makes the organization's namespace for Pods that serve files, if it is missing. Its quota then allows no sandbox
   * until `prepare` knows the plan. Leaves the bounds of an existing one alone. Rejects as `prepare` does.
   */
  prepareForFiles(org: OrgId, signal: AbortSignal): Promise<void>
  /** Ends the search for namespaces that nobody uses. */
  close(): Promise<void>
  /** Makes the next `prepare` look at the cluster again, because the namespace is gone. */
  forget(org: OrgId): void
}

type NamespacesInput = {
  readonly client: Pick<ApiClient, 'request'>
  /** The namespace that is shared, or whose name begins those of organizations. */
  readonly base: string
  /** `auto`: a namespace for each organization if the worker has the rights. */
  readonly wanted: NamespaceMode | 'auto'
  /** After how many days without a sandbox a namespace is deleted. 0: never. */
  readonly idleDays: number
  readonly capacity: Capacity
  /** The claims that volumes become. Null: none. */
  readonly claims: ClaimSettings | null
  /** Decides which Pods the namespaces must admit. */
  readonly network: NetworkMode
  readonly clock: Clock
  readonly log: Log
}

/** What a worker needs to make namespaces. The rights in each of them come with its RoleBinding. */
const RIGHTS: readonly Right[] = [
  { verb: 'create', group: '', resource: 'namespaces' },
  { verb: 'get', group: '', resource: 'namespaces' },
  { verb: 'create', group: 'rbac.authorization.k8s.io', resource: 'rolebindings' },
  { verb: 'bind', group: 'rbac.authorization.k8s.io', resource: 'clusterroles', name: SANDBOXES_ROLE },
  { verb: 'list', group: '', resource: 'pods' },
  { verb: 'watch', group: '', resource: 'pods' },
]
/** What a worker needs to delete namespaces that nobody uses. */
const SWEEP_RIGHTS: readonly Right[] = ['list', 'patch', 'delete'].map((verb) => ({
  verb,
  group: '',
  resource: 'namespaces',
}))
/** How often unused namespaces are looked for. */
const SWEEP_MS = 3_600_000
const UNLIMITED: OrgLimits = { max_running: null, max_vcpus_per_sandbox: null, max_memory_mib_per_sandbox: null }
/** How long a new RoleBinding may take until the API server observes it. */
const BINDING_LIMIT_MS = 15_000
const BINDING_RETRY_MS = 100
/** How long the deletion of a namespace may take. It took 6 s in the cluster of the tests. */
const DELETION_LIMIT_MS = 60_000
const DELETION_RETRY_MS = 500

/**
 * Finds out whether the worker may make namespaces, and returns how it names and makes them. Rejects in words if `wanted` asks for
 * rights that the worker lacks.
 */
export async function openNamespaces(input: NamespacesInput): Promise<SandboxNamespaces> {
  const { client, base, wanted, log } = input
  const missing = wanted === 'shared' ? RIGHTS : await findMissingRights(client, RIGHTS)
  const lacks = missing.map(({ verb, resource }) => `${verb} ${resource}`).join(', ')
  if (wanted === 'organization' && missing.length > 0)
    throw new Error(
      `SANDYARD_KUBERNETES_NAMESPACES=organization needs rights that the worker lacks in the cluster: ${lacks}`,
    )
  if (missing.length > 0) {
    log.info({ namespace: base, missing: lacks }, 'all organizations share one namespace')
    return {
      mode: 'shared',
      podsPath: `/api/v1/namespaces/${base}/pods`,
      description: `namespace ${base}`,
      nameOf: () => base,
      prepare: () => Promise.resolve(),
      prepareForFiles: () => Promise.resolve(),
      forget: () => undefined,
      close: () => Promise.resolve(),
    }
  }
  log.info({ prefix: base }, 'each organization gets a namespace of its own')
  const lacking = input.idleDays === 0 ? [] : await findMissingRights(client, SWEEP_RIGHTS)
  if (lacking.length > 0)
    log.info(
      { missing: lacking.map(({ verb }) => verb) },
      'unused namespaces stay: the worker lacks rights to delete them',
    )
  const sweeps = input.idleDays > 0 && lacking.length === 0
  return openOrgNamespaces(input, { user: await readOwnUser(client), sweeps })
}

function openOrgNamespaces(
  { client, base, idleDays, capacity, claims, network, clock, log }: NamespacesInput,
  { user, sweeps }: { readonly user: string; readonly sweeps: boolean },
): SandboxNamespaces {
  const deps = { client, clock, log }
  /** The bounds that this process has applied last, as JSON, and when. */
  const applied = new Map<OrgId, { readonly content: string; readonly atMs: number }>()
  const mutex = makeKeyedMutex()
  const standard = standardOf(network)
  const nameOf = (org: OrgId): string => orgNamespaceName(base, org)
  nameOf('' as OrgId) // the base's length is checked now, and not at the first start

  /** Whether the namespace is there, and not about to go. Throws if it is somebody else's. */
  const isThere = async (name: string, org: OrgId, signal: AbortSignal): Promise<boolean> => {
    const found = await persistRequest(
      () => client.request<Namespace>('GET', `/api/v1/namespaces/${name}`, undefined, { signal }),
      { signal, clock, log },
    ).catch((error: unknown) => {
      if (isApiError(error, 404)) return null
      throw error
    })
    if (found === null) return false
    const { metadata } = found
    if (metadata.labels?.[LABELS.org] !== org)
      throw new StartError('host', `the cluster has a namespace ${name} that is not of this organization`)
    if (metadata.labels[ENFORCED_STANDARD] !== standard)
      throw new StartError(
        'host',
        `the namespace ${name} must have the label ${ENFORCED_STANDARD}=${standard}, because of SANDYARD_KUBERNETES_NETWORK=${network}`,
      )
    return metadata.deletionTimestamp === undefined
  }
  const create = async (name: string, org: OrgId, signal: AbortSignal): Promise<void> => {
    const startedMs = clock.monotonicMs()
    for (;;) {
      await createObject(deps, '/api/v1/namespaces', { object: makeNamespace({ name, org, standard }), signal })
      if (await isThere(name, org, signal)) return
      // A worker has deleted it because nobody used it. It is made anew when it is gone.
      if (clock.monotonicMs() - startedMs > DELETION_LIMIT_MS)
        throw new StartError('host', `the namespace ${name} is being deleted`)
      await clock.sleep(DELETION_RETRY_MS, signal)
    }
  }
  const apply = async (namespace: string, { collection, object }: NamespacedObject, signal: AbortSignal) => {
    const path = `${collection.replace('{namespace}', namespace)}/${object.metadata.name}`
    const startedMs = clock.monotonicMs()
    for (;;) {
      try {
        await applyObject(deps, path, { object, signal })
        return
      } catch (error) {
        if (!isApiError(error, 403) || clock.monotonicMs() - startedMs > BINDING_LIMIT_MS) throw error
        await clock.sleep(BINDING_RETRY_MS, signal)
      }
    }
  }
  const bind = async (name: string, signal: AbortSignal): Promise<void> => {
    const { collection, object } = makeRoleBinding(user)
    await createObject(deps, collection.replace('{namespace}', name), { object, signal })
  }
  const make = async (org: OrgId, bounds: readonly NamespacedObject[], signal: AbortSignal): Promise<void> => {
    const name = nameOf(org)
    await create(name, org, signal)
    await bind(name, signal)
    const counted = sweeps ? [makeObjectsQuota()] : []
    for (const object of [...bounds, ...counted]) await apply(name, object, signal)
    if (sweeps) await touchNamespace(deps, { name, org, standard }, signal)
  }
  const closing = new AbortController()
  const sweep = async (): Promise<void> => {
    if (!sweeps) return
    const input = { ...deps, base, idleMs: idleDays * 86_400_000 }
    for (const org of await sweepNamespaces(input, closing.signal)) applied.delete(org)
  }
  const onFailure = (error: unknown): void => {
    if (!closing.signal.aborted) log.warn({ error }, 'unused namespaces could not be looked for')
  }
  const sweeping = repeat(sweep, { pauseMs: SWEEP_MS, clock, onFailure })

  return {
    mode: 'organization',
    podsPath: '/api/v1/pods',
    description: `a namespace for each organization (${base}-…)`,
    nameOf,
    async prepare({ org_id, org_limits }, signal) {
      const bounds = makeBounds(org_limits ?? UNLIMITED, { capacity, claims })
      const content = JSON.stringify(bounds)
      await mutex.run(org_id, async () => {
        const known = applied.get(org_id)
        if (known?.content === content && clock.monotonicMs() - known.atMs < REFRESH_MS) return
        const atMs = clock.monotonicMs()
        await make(org_id, bounds, signal).catch(throwRefused)
        applied.set(org_id, { content, atMs })
      })
    },
    async prepareForFiles(org, signal) {
      await mutex.run(org, async () => {
        const name = nameOf(org)
        if (await isThere(name, org, signal)) {
          if (!applied.has(org)) await bind(name, signal).catch(throwRefused)
        } else
          await make(org, makeBounds({ ...UNLIMITED, max_running: 0 }, { capacity, claims }), signal).catch(
            throwRefused,
          )
      })
    },
    forget: (org) => void applied.delete(org),
    async close() {
      closing.abort(new Error('the driver is closed'))
      await sweeping.close()
    },
  }
}

function throwRefused(error: unknown): never {
  if (!(error instanceof ApiError)) throw error
  throw new StartError('host', `the namespace of the organization can't be made: ${error.message}`, error)
}

type Namespace = {
  readonly metadata: { readonly labels?: Readonly<Record<string, string>>; readonly deletionTimestamp?: string }
}
