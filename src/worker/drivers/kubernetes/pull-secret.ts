import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { parseImageReference, PUBLIC_HUB } from '../../../domain/spec/image-reference.ts'
import { isApiError } from '../../kubernetes/api-error.ts'
import { applyObject, createObject, type ObjectDeps } from '../../kubernetes/objects.ts'
import { persistRequest } from '../../kubernetes/persist-request.ts'
import { StartError } from '../../start-error.ts'
import type { Pod, PodName } from './pod.ts'

/** Clusters know the public hub by this address. */
const HUB_ADDRESS = `https://index.${PUBLIC_HUB}/v1/`

/**
 * The content of the image pull Secret with a run's credential, for its registry alone. Null without a credential. Throws `StartError` of
 * reason `registry` for an image without a host: the cluster and the control plane may complete its name differently.
 */
export function pullCredentialOf({ spec, registry_auth }: Pick<DesiredRun, 'spec' | 'registry_auth'>): string | null {
  if (registry_auth === null) return null
  const parsed = parseImageReference(spec.image, '')
  if (!parsed.ok)
    throw new StartError('registry', `image '${spec.image}': on this worker, name its registry to use a credential`)
  const { username, password } = registry_auth
  const { registry } = parsed.reference
  const auth = Buffer.from(`${username}:${password}`).toString('base64')
  return JSON.stringify({ auths: { [registry === PUBLIC_HUB ? HUB_ADDRESS : registry]: { username, password, auth } } })
}

type Creation = {
  readonly credential: string
  /** The Pod, if there is one already: the cluster deletes the Secret with it. */
  readonly owner?: Pod
  readonly signal: AbortSignal
}

/** Creates the Secret of a Pod. Both have the same name. May be repeated. */
export async function createPullSecret(
  deps: ObjectDeps,
  { namespace, name }: PodName,
  { credential, owner, signal }: Creation,
): Promise<void> {
  const secret = {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name, ...(owner === undefined ? {} : { ownerReferences: ownersOf(owner) }) },
    type: 'kubernetes.io/dockerconfigjson',
    data: { '.dockerconfigjson': Buffer.from(credential).toString('base64') },
  }
  try {
    await createObject(deps, secretsOf(namespace), { object: secret, signal })
  } catch (error) {
    if (isApiError(error, 403))
      throw new StartError(
        'registry',
        `the worker may not create Secrets in ${namespace}, which image pulls with a credential need`,
        error,
      )
    throw error
  }
}

/** Makes a Pod the owner of its Secret, so that the cluster deletes both together. Rejects with `StartError` if the cluster refuses that. */
export async function ownPullSecret(deps: ObjectDeps, pod: Pod, signal: AbortSignal): Promise<void> {
  const { namespace, name } = pod.metadata
  const owned = { apiVersion: 'v1', kind: 'Secret', metadata: { name, ownerReferences: ownersOf(pod) } }
  try {
    await applyObject(deps, `${secretsOf(namespace)}/${name}`, { object: owned, signal })
  } catch (error) {
    if (!isApiError(error, 400, 403, 422)) throw error
    const what = 'the owner of the Secret with the credential of its image'
    throw new StartError('host', `the cluster refuses ${what}: ${error.message}`, error)
  }
}

/** Deletes the Secret of a Pod. Succeeds if it is gone. */
export async function deletePullSecret(
  deps: ObjectDeps,
  { namespace, name }: PodName,
  signal: AbortSignal,
): Promise<void> {
  try {
    const remove = (): Promise<unknown> =>
      deps.client.request('DELETE', `${secretsOf(namespace)}/${name}`, undefined, { signal })
    await persistRequest(remove, { ...deps, signal })
  } catch (error) {
    if (!isApiError(error, 404)) throw error
  }
}

function ownersOf({ metadata: { name, uid } }: Pod): readonly object[] {
  return [{ apiVersion: 'v1', kind: 'Pod', name, uid }]
}

function secretsOf(namespace: string): string {
  return `/api/v1/namespaces/${namespace}/secrets`
}
