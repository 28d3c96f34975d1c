import type { Semaphore } from '../../../../lib/turns/semaphore.ts'
import type { VolumeKey } from '../../../volumes/volume-storage.ts'
import { FILES_PODS_PER_ORG } from '../claim.ts'
import type { OrgPod } from '../pod.ts'

/** The Pod of a volume, from its first request on. */
export type FilesPod = {
  readonly volume: VolumeKey
  readonly name: string
  readonly permits: Semaphore
  /** The Pod, once it accepts operations. */
  readonly ready: Promise<OrgPod>
  /** Ends the wait for it, and deletes it. Does nothing once it is ready. */
  readonly making: AbortController
  /** How many operations run in it, or wait for it. */
  running: number
  lastUsedMs: number
  /** Whether it stays for some time when no operation runs. */
  isKept: boolean
  /** Ends the wait for the next operation. */
  idle: AbortController
  /** Resolves once the volume may have another Pod. */
  readonly left: PromiseWithResolvers<undefined>
  /** Set once no further operation may begin. Resolves when the Pod is gone. */
  ending: Promise<void> | null
}

/** How many Pods serve files at once, of all organizations. */
const FILES_PODS_MAX = 100

/** The Pods that must become fewer before an organization gets one more. */
export function podsInTheWay(all: readonly FilesPod[], { org_id }: Pick<VolumeKey, 'org_id'>): readonly FilesPod[] {
  const ofOrg = all.filter(({ volume }) => volume.org_id === org_id)
  return ofOrg.length >= FILES_PODS_PER_ORG ? ofOrg : all.length >= FILES_PODS_MAX ? all : []
}

/** The Pod that makes space: one that ends already, or the idle one that was not used for the longest time. */
export function nextToEnd(among: readonly FilesPod[]): FilesPod | undefined {
  const idle = among.filter(({ running }) => running === 0).toSorted((a, b) => a.lastUsedMs - b.lastUsedMs)
  return among.find(({ ending }) => ending !== null) ?? idle[0]
}
