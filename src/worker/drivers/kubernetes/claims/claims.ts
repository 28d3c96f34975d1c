/**
 * The volumes of a worker as PersistentVolumeClaims, each in the namespace of its organization. The cluster has the claims, and the
 * driver's folder only names the namespaces to look into. Claims belong to volumes, not to workers: nothing here depends on which
 * data folder made a claim.
 */
import type { DesiredRun, DesiredVolume, StorageReport } from '../../../../contract/workers/worker-protocol.ts'
import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
import { asId, type OrgId, type VolumeId } from '../../../../domain/ids.ts'
import type { SandboxSpec } from '../../../../domain/spec/spec.ts'
import { awaitUntilAborted } from '../../../../lib/await-answer.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { Random } from '../../../../lib/random.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import { parseQuantity } from '../../../kubernetes/quantity.ts'
import { StartError } from '../../../start-error.ts'
import type { DriverVolumes } from '../../driver.ts'
import {
  modesOf,
  volumeLabel,
  type ClaimFiles,
  type ClaimSettings,
  type PersistentVolumeClaim,
  type RunClaim,
} from '../claim.ts'
import type { Asking, MountClaim } from '../files/asking.ts'
import { makeClaimFiles } from '../files/claim-files.ts'
import type { FilesPods } from '../files/files-pods.ts'
import type { SandboxNamespaces } from '../namespaces/namespaces.ts'
import { isOver, LABELS, type Pod } from '../pod.ts'
import type { Pods } from '../pods.ts'
import { prepareBindSources } from './bind-sources.ts'
import { claimsPath, requireClass, requireNamespaces, tryClaim } from './claim-conditions.ts'
import { claimPath, openStoredClaims } from './stored-claims.ts'

/** The volumes of the worker. */
export type Claims = DriverVolumes & {
  /** The files of a volume for a start, which waits for them as long as its signal allows, and ends its operations then. */
  filesForStart(volume: DesiredVolume, startSignal: AbortSignal): ClaimFiles
  /**
   * Makes the claims that a run mounts, unless the cluster has them. The namespace must exist. May be repeated. Rejects with `StartError`,
   * and with `ApiError` of status 404 if the namespace is gone.
   */
  prepare(run: Pick<DesiredRun, 'org_id' | 'spec' | 'volumes'>, signal: AbortSignal): Promise<PreparedClaims>
}

/** The claims of a run. Those of one Pod are reserved for it until this is disposed. The Pod must be known by then. */
export type PreparedClaims = Disposable & { readonly all: readonly RunClaim[] }

type ClaimsInput = {
  /** The driver's folder. */
  readonly dir: string
  readonly client: Pick<ApiClient, 'request'>
  readonly namespaces: Pick<SandboxNamespaces, 'mode' | 'nameOf' | 'prepareForFiles'>
  /** The namespace that is shared, or whose name begins those of organizations. */
  readonly base: string
  readonly settings: ClaimSettings
  readonly pods: Pick<Pods, 'all'>
  readonly filesPods: Pick<FilesPods, 'start' | 'release' | 'releaseWhenIdle'>
  readonly random: Random
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
  const { dir, client, namespaces, base, settings, pods, filesPods, random, clock, log } = input
  await requireClass(client, settings.storageClass)
  await tryClaim(client, base, settings)
  const stored = await openStoredClaims(dir, { client, clock, log }, { settings, nameOf: namespaces.nameOf })
  requireNamespaces(stored.namespaces, namespaces, base)
  /** The volumes of one Pod that a start is about to mount: its Pod isn't made yet. */
  const reserved = new Set<string>()

  const podsOf = (volume_id: string): readonly Pod[] =>
    pods.all().filter(({ metadata }) => metadata.labels?.[volumeLabel(volume_id)] !== undefined)

  /** The claim of a volume as the next Pod mounts it. Throws if it must be the only one, and a sandbox has it. */
  const toMount = (
    claim: PersistentVolumeClaim,
    volume: RunClaim['volume'],
    { what, advice }: { readonly what: string; readonly advice: string },
  ): RunClaim => {
    const modes = modesOf(claim)
    const users = podsOf(volume.volume_id).filter((pod) => !isOver(pod) && !isOfFiles(pod))
    const isShared = modes.includes('ReadWriteMany')
    if (isOfOnePod(claim) && users.length > 0)
      throw new StartError('mount', `${what} is in use, and its mode ${modes.join(', ')} allows ${advice}`)
    const node = isShared ? null : (users.find(({ spec }) => spec?.nodeName !== undefined)?.spec?.nodeName ?? null)
    return { volume, claimName: claim.metadata.name, isShared, node }
  }
  const prepareOne = async (
    volume: DesiredRun['volumes'][number],
    { signal, reservations }: { readonly signal: AbortSignal; readonly reservations: DisposableStack },
  ): Promise<RunClaim> => {
    const { volume_id } = volume
    const what = `the volume '${volume.name ?? 'default'}'`
    const claim = await stored.require(volume, what, signal)
    const mounted = toMount(claim, volume, { what, advice: 'one sandbox at a time' })
    if (mounted.isShared) return mounted
    if (!isOfOnePod(claim)) {
      filesPods.releaseWhenIdle(volume_id) // its node would have to take the sandbox, too
      return mounted
    }
    if (reserved.has(volume_id))
      throw new StartError('mount', `another sandbox is about to mount ${what}, whose mode allows one at a time`)
    reservations.defer(() => reserved.delete(volume_id)) // throws if another volume was refused meanwhile
    reserved.add(volume_id)
    await awaitUntilAborted(filesPods.release(volume_id), signal)
    return mounted
  }
  const mountForFiles = async (volume: DesiredVolume, signal: AbortSignal) => {
    const namespace = namespaces.nameOf(volume.org_id)
    try {
      await namespaces.prepareForFiles(volume.org_id, signal)
      const claim = await stored.require(volume, 'the volume', signal)
      const advice = 'one Pod at a time: stop its sandbox, or use the files of the sandbox'
      const mounted = toMount(claim, { name: null, volume_id: volume.volume_id }, { what: 'the volume', advice })
      if (isOfOnePod(claim) && reserved.has(volume.volume_id))
        throw new StartError('mount', `a sandbox is about to mount the volume, whose mode allows ${advice}`)
      return { namespace, claim: mounted }
    } catch (error) {
      if (error instanceof StartError && error.reason === 'mount')
        throw new VolumeFileError('volume_file_conflict', error.message, error)
      throw error
    }
  }
  const filesOf = (volume: DesiredVolume, asking: Pick<Asking, 'startSignal'>): ClaimFiles => {
    const mount: MountClaim = (signal) => mountForFiles(volume, signal)
    return makeClaimFiles({ start: (operation) => filesPods.start(volume, operation, { ...asking, mount }), random })
  }

  const lookAtSources = async (volume: DesiredVolume, spec: SandboxSpec, startSignal: AbortSignal): Promise<void> => {
    try {
      await prepareBindSources(filesOf(volume, { startSignal }), spec)
    } catch (error) {
      if (startSignal.aborted) filesPods.releaseWhenIdle(volume.volume_id)
      throw error
    }
  }

  const report: StorageReport = {
    is_shared: false,
    enforces_caps: false,
    how: `PersistentVolumeClaims of ${String(settings.sizeGib)} GiB, storage class ${settings.storageClass}, ${settings.mode}: a claim can't be made smaller, and not every class ends a write at its size`,
  }
  return {
    report,
    async prepare({ spec, volumes }, signal) {
      const names = new Set(
        spec.mounts.flatMap((mount) => (mount.type === 'named' ? [mount.name] : mount.type === 'bind' ? [null] : [])),
      )
      const mounted = volumes.filter(({ name }) => names.has(name))
      const own = mounted.find(({ name }) => name === null)
      if (own !== undefined) await lookAtSources(own, spec, signal)
      using reservations = new DisposableStack()
      const all = await Promise.all(mounted.map((volume) => prepareOne(volume, { signal, reservations })))
      const kept = reservations.move()
      return { all, [Symbol.dispose]: () => kept.dispose() }
    },
    filesForStart: (volume, startSignal) => filesOf(volume, { startSignal }),
    applyCaps({ capacity_bytes, org_capacity_bytes }) {
      if (capacity_bytes === null && org_capacity_bytes === null) return Promise.resolve()
      return Promise.reject(new Error(`a cap on a volume can't be enforced here: ${report.how}`))
    },
    async remove({ org_id, volume_id }) {
      const path = claimPath(namespaces.nameOf(org_id), volume_id)
      await filesPods.release(volume_id)
      const claim = await stored.find(path)
      if (claim === null) return
      const [user] = podsOf(volume_id)
      if (user !== undefined) throw new Error(`volume ${volume_id} is mounted by the Pod ${user.metadata.name}`)
      const { uid, deletionTimestamp } = claim.metadata
      if (deletionTimestamp === undefined) await client.request('DELETE', path, { preconditions: { uid } })
      // The cluster keeps the claim as long as a Pod has it, also one that this worker doesn't know.
      const startedMs = clock.monotonicMs()
      while ((await stored.find(path))?.metadata.uid === uid) {
        if (clock.monotonicMs() - startedMs > GONE_MS)
          throw new Error(`the claim of volume ${volume_id} is still in use`)
        await clock.sleep(LOOK_MS)
      }
    },
    async measure() {
      const lists = [...stored.namespaces].map(async (namespace) => {
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
    openFiles: (volume) => Promise.resolve(filesOf(volume, {})),
  }
}

/** Whether a Pod serves files, and is no sandbox's. */
function isOfFiles({ metadata }: Pod): boolean {
  return metadata.labels?.[LABELS.files] !== undefined
}

/** Whether only one Pod at a time may mount a claim. */
function isOfOnePod(claim: PersistentVolumeClaim): boolean {
  const modes = modesOf(claim)
  return !modes.includes('ReadWriteMany') && !modes.includes('ReadWriteOnce')
}
