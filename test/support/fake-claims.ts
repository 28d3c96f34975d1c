import type { FakePod } from './fake-kubernetes.ts'

/** A PersistentVolumeClaim of the fake. */
export type FakeClaim = {
  metadata: {
    name: string
    namespace: string
    uid: string
    labels?: Record<string, string>
    deletionTimestamp?: string
  }
  spec: { accessModes: string[]; storageClassName: string; resources: { requests: { storage: string } } }
  status: { phase: string; accessModes: string[]; capacity: { storage: string } }
}

/** The claims of the fake: bound at once, and kept while a Pod mounts them, as the protection of the real ones does. */
export type FakeClaims = {
  /** By namespace and name, such as `sandboxes/sandyard-volume-1`. */
  readonly all: Map<string, FakeClaim>
  /** Answers a request with a status and a body. Null if the path is not of claims. */
  answer(request: ClaimRequest): readonly [status: number, body: object] | null
  /** Deletes claims that waited for their last Pod. */
  sweep(): void
}
type ClaimRequest = {
  readonly method: string
  readonly path: string
  readonly query: URLSearchParams
  /** The parsed body, or null. */
  readonly body: unknown
}

const CLAIMS = /^\/api\/v1\/namespaces\/([^/]+)\/persistentvolumeclaims(?:\/([^/]+))?$/

/** Makes an empty set of claims. `pods` are the Pods of the fake. */
export function makeFakeClaims(pods: ReadonlyMap<string, FakePod>): FakeClaims {
  const all = new Map<string, FakeClaim>()
  let uids = 0
  const isMounted = ({ metadata }: FakeClaim): boolean =>
    [...pods.values()].some((pod) => {
      const volumes = (pod.spec['volumes'] ?? []) as { persistentVolumeClaim?: { claimName: string } }[]
      const names = volumes.map(({ persistentVolumeClaim }) => persistentVolumeClaim?.claimName)
      return pod.metadata.namespace === metadata.namespace && names.includes(metadata.name)
    })
  const sweep = (): void => {
    for (const [key, claim] of all)
      if (claim.metadata.deletionTimestamp !== undefined && !isMounted(claim)) all.delete(key)
  }
  const refuse = (status: number, reason: string): readonly [number, object] => [
    status,
    { kind: 'Status', status: 'Failure', reason, message: `${reason} by the fake`, code: status },
  ]
  return {
    all,
    sweep,
    answer({ method, path, query, body }) {
      const [isOfClaims, namespace = '', name] = CLAIMS.exec(path) ?? []
      if (isOfClaims === undefined) return null
      if (name === undefined && method === 'GET') {
        const label = query.get('labelSelector') ?? ''
        const items = [...all.values()].filter(
          ({ metadata }) => metadata.namespace === namespace && metadata.labels?.[label] !== undefined,
        )
        return [200, { metadata: {}, items }]
      }
      if (method === 'POST') {
        const given = body as FakeClaim
        const key = `${namespace}/${given.metadata.name}`
        if (all.has(key)) return refuse(409, 'AlreadyExists')
        uids += 1
        const { accessModes, resources } = given.spec
        const claim = {
          ...given,
          metadata: { ...given.metadata, namespace, uid: `claim-${String(uids)}` },
          status: { phase: 'Bound', accessModes, capacity: resources.requests },
        }
        if (!query.has('dryRun')) all.set(key, claim)
        return [201, claim]
      }
      const claim = all.get(`${namespace}/${name ?? ''}`)
      if (claim === undefined) return refuse(404, 'NotFound')
      if (method === 'DELETE') {
        const { preconditions } = body as { preconditions?: { uid: string } }
        if (preconditions?.uid !== claim.metadata.uid) return refuse(409, 'Conflict')
        claim.metadata.deletionTimestamp = '2026-01-01T00:00:00Z'
        sweep()
      }
      return [200, claim]
    },
  }
}
