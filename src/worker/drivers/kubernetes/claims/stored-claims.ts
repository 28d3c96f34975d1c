import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredVolume } from '../../../../contract/workers/worker-protocol.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { createObject, type ObjectDeps } from '../../../kubernetes/objects.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { StartError } from '../../../start-error.ts'
import type { VolumeKey } from '../../../volumes/volume-storage.ts'
import { claimNameOf, makeClaim, type ClaimSettings, type PersistentVolumeClaim } from '../claim.ts'
import { LABELS } from '../pod.ts'
import { claimsPath } from './claim-conditions.ts'

/** The claims in the cluster, and the folder that names their namespaces. */
export type StoredClaims = {
  /** The namespaces that have claims. */
  readonly namespaces: ReadonlySet<string>
  /** Null if there is no such claim. */
  find(path: string): Promise<PersistentVolumeClaim | null>
  /**
   * Returns the claim of a volume, which is made if it is missing. Its namespace must exist. Rejects with `StartError`
   * if it can't be mounted, and with `ApiError` of status 404 if the namespace is gone. `what` names the volume.
   */
  require(volume: DesiredVolume, what: string, signal: AbortSignal): Promise<PersistentVolumeClaim>
}

/** The path of a volume's claim. */
export function claimPath(namespace: string, volume_id: string): string {
  return `${claimsPath(namespace)}/${claimNameOf(volume_id)}`
}

/** Reads the folder. `nameOf` returns the namespace of an organization. */
export async function openStoredClaims(
  dir: string,
  deps: ObjectDeps,
  { settings, nameOf }: { readonly settings: ClaimSettings; readonly nameOf: (org: VolumeKey['org_id']) => string },
): Promise<StoredClaims> {
  const { client, clock, log } = deps
  const folder = join(dir, 'claims')
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const used = new Set(await readdir(folder))

  const noteNamespace = async (namespace: string): Promise<void> => {
    if (used.has(namespace)) return
    await writeFile(join(folder, namespace), '', { mode: 0o600, flush: true })
    used.add(namespace)
  }
  const find = async (path: string): Promise<PersistentVolumeClaim | null> => {
    try {
      return await client.request<PersistentVolumeClaim>('GET', path)
    } catch (error) {
      if (isApiError(error, 404)) return null
      throw error
    }
  }
  const makeIfMissing = async (volume: VolumeKey, signal: AbortSignal): Promise<PersistentVolumeClaim> => {
    const namespace = nameOf(volume.org_id)
    const path = claimPath(namespace, volume.volume_id)
    const persist = { signal, clock, log }
    const found = await persistRequest(() => find(path), persist)
    if (found !== null) return found
    await noteNamespace(namespace)
    await createObject(deps, claimsPath(namespace), { object: makeClaim(volume, settings), signal })
    return await persistRequest(
      () => client.request<PersistentVolumeClaim>('GET', path, undefined, { signal }),
      persist,
    )
  }
  return {
    namespaces: used,
    find,
    async require(volume, what, signal) {
      if (volume.capacity_bytes !== null || volume.org_capacity_bytes !== null)
        throw new StartError('mount', `${what} has a cap, and no claim enforces one`)
      const claim = await makeIfMissing(volume, signal).catch((error: unknown) => {
        if (isApiError(error, 400, 403, 422))
          throw new StartError('mount', `the cluster refuses the claim of ${what}: ${error.message}`, error)
        throw error
      })
      if (claim.metadata.labels?.[LABELS.org] !== volume.org_id)
        throw new StartError('mount', `the claim of ${what} is not of this organization`)
      if (claim.metadata.deletionTimestamp !== undefined)
        throw new StartError('mount', `the claim of ${what} is being deleted`)
      return claim
    },
  }
}
