/**
 * The volumes of a worker as PersistentVolumeClaims, each in the namespace of its organization. The cluster has the claims, and the
 * driver's folder only names the namespaces to look into. Claims belong to volumes, not to workers: nothing here depends on which
 * data folder made a claim.
 */
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun, StorageReport } from '../../../../contract/workers/worker-protocol.ts'
import { VolumeFileError, type VolumeFiles } from '../../../../contract/volumes/volume-protocol.ts'
import { asId, type OrgId, type VolumeId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { isApiError } from '../../../kubernetes/api-error.ts'
import { createObject } from '../../../kubernetes/objects.ts'
import { persistRequest } from '../../../kubernetes/persist-request.ts'
import { StartError } from '../../../start-error.ts'
import type { VolumeKey } from '../../../volumes/volume-storage.ts'
import type { DriverVolumes } from '../../driver.ts'
import {
  claimNameOf,
  makeClaim,
  modesOf,
  volumeLabel,
  type ClaimSettings,
  type PersistentVolumeClaim,
  type RunClaim,
} from '../claim.ts'
import { claimsPath, requireClass, requireNamespaces, tryClaim } from './claim-conditions.ts'
import type { SandboxNamespaces } from '../namespaces/namespaces.ts'
import { isOver, LABELS, type Pod } from '../pod.ts'
import type { Pods } from '../pods.ts'
import { parseQuantity } from '../../../kubernetes/quantity.ts'

/** The volumes of the worker. */
export type Claims = DriverVolumes & {
  /**
   * Makes the claims that a run mounts, unless the cluster has them. The namespace must exist. May be repeated. Rejects with `StartError`,
   * and with `ApiError` of status 404 if the namespace is gone.
   */
  prepare(run: Pick<DesiredRun, 'org_id' | 'spec' | 'volumes'>, signal: AbortSignal): Promise<readonly RunClaim[]>
}

type ClaimsInput = {
  /** The driver's folder. */
  readonly dir: string
  readonly client: Pick<ApiClient, 'request'>
  readonly namespaces: Pick<SandboxNamespaces, 'mode' | 'nameOf'>
  /** The namespace that is shared, or whose name begins those of organizations. */
  readonly base: string
  readonly settings: ClaimSettings
  readonly pods: Pick<Pods, 'all'>
  readonly clock: Clock
  readonly log: Log
}

/** How long a deletion waits until the cluster has no such claim any more. The caller tries again. */
const GONE_MS = 5_000
const LOOK_MS = 200
const BYTES_PER_GIB = 1024 ** 3

/**
 * Finds out whether the worker can make claims. Rejects in words if the cluster lacks the storage class, if it refuses a claim, or if
 * volumes of an earlier start are in other namespaces.
 */
export async function openClaims(input: ClaimsInput): Promise<Claims> {
  const { dir, client, namespaces, base, settings, pods, clock, log } = input
  await requireClass(client, settings.storageClass)
  await tryClaim(client, base, settings)
  const folder = join(dir, 'claims')
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const used = new Set(await readdir(folder))
  requireNamespaces(used, namespaces, base)

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
  const podsOf = (volume_id: string): readonly Pod[] =>
    pods.all().filter(({ metadata }) => metadata.labels?.[volumeLabel(volume_id)] !== undefined)

  const makeIfMissing = async (volume: VolumeKey, signal: AbortSignal): Promise<PersistentVolumeClaim> => {
    const collection = claimsPath(namespaces.nameOf(volume.org_id))
    const path = `${collection}/${claimNameOf(volume.volume_id)}`
    const persist = { signal, clock, log }
    const found = await persistRequest(() => find(path), persist)
    if (found !== null) return found
    await noteNamespace(namespaces.nameOf(volume.org_id))
    await createObject({ client, clock, log }, collection, { object: makeClaim(volume, settings), signal })
    return await persistRequest(
      () => client.request<PersistentVolumeClaim>('GET', path, undefined, { signal }),
      persist,
    )
  }
  const prepareOne = async (volume: DesiredRun['volumes'][number], signal: AbortSignal): Promise<RunClaim> => {
    const { name, volume_id, org_id } = volume
    const what = `the volume '${name ?? 'default'}'`
    if (volume.capacity_bytes !== null || volume.org_capacity_bytes !== null)
      throw new StartError('mount', `${what} has a cap, and no claim enforces one`)
    const claim = await makeIfMissing(volume, signal).catch((error: unknown) => {
      if (isApiError(error, 400, 403, 422))
        throw new StartError('mount', `the cluster refuses the claim of ${what}: ${error.message}`, error)
      throw error
    })
    if (claim.metadata.labels?.[LABELS.org] !== org_id)
      throw new StartError('mount', `the claim of ${what} is not of this organization`)
    if (claim.metadata.deletionTimestamp !== undefined)
      throw new StartError('mount', `the claim of ${what} is being deleted`)
    const modes = modesOf(claim)
    const users = podsOf(volume_id).filter((pod) => !isOver(pod))
    const isShared = modes.includes('ReadWriteMany')
    if (!isShared && !modes.includes('ReadWriteOnce') && users.length > 0)
      throw new StartError('mount', `${what} is in use, and its mode ${modes.join(', ')} allows one sandbox at a time`)
    const node = isShared ? null : (users.find(({ spec }) => spec?.nodeName !== undefined)?.spec?.nodeName ?? null)
    return { volume, claimName: claim.metadata.name, isShared, node }
  }

  const report: StorageReport = {
    is_shared: false,
    enforces_caps: false,
    serves_files: false,
    how: `PersistentVolumeClaims of ${String(settings.sizeGib)} GiB, storage class ${settings.storageClass}, ${settings.mode}: a claim can't be made smaller, and not every class ends a write at its size`,
  }
  return {
    report,
    async prepare({ spec, volumes }, signal) {
      const mounted = new Set(spec.mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : [])))
      return await Promise.all(
        volumes.filter(({ name }) => name !== null && mounted.has(name)).map((volume) => prepareOne(volume, signal)),
      )
    },
    applyCaps({ capacity_bytes, org_capacity_bytes }) {
      if (capacity_bytes === null && org_capacity_bytes === null) return Promise.resolve()
      return Promise.reject(new Error(`a cap on a volume can't be enforced here: ${report.how}`))
    },
    async remove({ org_id, volume_id }) {
      const path = `${claimsPath(namespaces.nameOf(org_id))}/${claimNameOf(volume_id)}`
      const claim = await find(path)
      if (claim === null) return
      const [user] = podsOf(volume_id)
      if (user !== undefined) throw new Error(`volume ${volume_id} is mounted by the Pod ${user.metadata.name}`)
      const { uid, deletionTimestamp } = claim.metadata
      if (deletionTimestamp === undefined) await client.request('DELETE', path, { preconditions: { uid } })
      // The cluster keeps the claim as long as a Pod has it, also one that this worker doesn't know.
      const startedMs = clock.monotonicMs()
      while ((await find(path))?.metadata.uid === uid) {
        if (clock.monotonicMs() - startedMs > GONE_MS)
          throw new Error(`the claim of volume ${volume_id} is still in use`)
        await clock.sleep(LOOK_MS)
      }
    },
    async measure() {
      const lists = [...used].map(async (namespace) => {
        const query = new URLSearchParams({ labelSelector: LABELS.volume })
        const path = `${claimsPath(namespace)}?${query.toString()}`
        return (await client.request<{ readonly items: readonly PersistentVolumeClaim[] }>('GET', path)).items
      })
      return (await Promise.all(lists)).flat().map(({ metadata: { labels = {} }, spec, status }) => ({
        org_id: asId<OrgId>(labels[LABELS.org] ?? ''),
        volume_id: asId<VolumeId>(labels[LABELS.volume] ?? ''),
        // What the cluster sets aside. Nothing that could be trusted measures the files.
        used_bytes:
          parseQuantity(status?.capacity?.storage ?? spec.resources.requests.storage) ??
          settings.sizeGib * BYTES_PER_GIB,
      }))
    },
    openFiles: () => Promise.resolve(REFUSED_FILES),
  }
}

const refuse = (): Promise<never> =>
  Promise.reject(
    new VolumeFileError(
      'volume_file_conflict',
      "the files of this volume are in a PersistentVolumeClaim, which only sandboxes can open: use 'mounts' of type 'named'",
    ),
  )
const REFUSED_FILES: VolumeFiles = {
  list: refuse,
  stat: refuse,
  exists: refuse,
  read: refuse,
  write: refuse,
  mkdir: refuse,
  copy: refuse,
  rename: refuse,
  remove: refuse,
}
