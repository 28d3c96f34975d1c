// What must hold before a worker makes claims.
import { asId, type OrgId, type VolumeId } from '../../../../domain/ids.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { makeClaim, type ClaimSettings } from '../claim.ts'
import type { SandboxNamespaces } from '../namespaces/namespaces.ts'

/** The path of the claims of a namespace. */
export function claimsPath(namespace: string): string {
  return `/api/v1/namespaces/${namespace}/persistentvolumeclaims`
}

/** Rejects in words if the cluster has no such StorageClass, or the worker may not read it. */
export async function requireClass(client: Pick<ApiClient, 'request'>, name: string): Promise<void> {
  try {
    await client.request('GET', `/apis/storage.k8s.io/v1/storageclasses/${encodeURIComponent(name)}`)
  } catch (error) {
    if (isApiError(error, 404))
      throw new Error(`the cluster has no StorageClass ${name} (SANDYARD_KUBERNETES_VOLUME_CLASS)`, { cause: error })
    if (isApiError(error, 403))
      throw new Error(`the worker may not read the StorageClass ${name}: grant it get of storageclasses`, {
        cause: error,
      })
    throw error
  }
}

/** Asks the API server whether it would accept a claim, which it doesn't store. Rejects in words if it refuses. */
export async function tryClaim(
  client: Pick<ApiClient, 'request'>,
  base: string,
  settings: ClaimSettings,
): Promise<void> {
  const probe = makeClaim({ org_id: asId<OrgId>('probe'), volume_id: asId<VolumeId>('probe') }, settings)
  try {
    await client.request('POST', `${claimsPath(base)}?dryRun=All`, probe)
  } catch (error) {
    if (!isApiError(error, 400, 403, 422)) throw error
    const { storageClass, mode } = settings
    throw new Error(
      `the cluster refuses PersistentVolumeClaims of the class ${storageClass} (SANDYARD_KUBERNETES_VOLUME_CLASS) and the mode ${mode} (SANDYARD_KUBERNETES_VOLUME_MODE) in namespace ${base}: ${error.message}`,
      { cause: error },
    )
  }
}

/** Throws if volumes are in namespaces that this mode doesn't use. Sandboxes would find empty ones instead. */
export function requireNamespaces(
  used: ReadonlySet<string>,
  { mode }: Pick<SandboxNamespaces, 'mode'>,
  base: string,
): void {
  const other = [...used].find((namespace) => (mode === 'shared') !== (namespace === base))
  if (other === undefined) return
  throw new Error(
    `this worker has volumes in namespace ${other}, which it does not use any more: set SANDYARD_KUBERNETES_NAMESPACES=${other === base ? 'shared' : 'organization'} as before`,
  )
}
