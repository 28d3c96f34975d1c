import type { Capacity, DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { ApiClient } from '../../../kubernetes/api-client.ts'
import type { WarmStarts } from '../../driver.ts'
import { makeShapeDemand } from '../../shared/shape-demand.ts'
import type { AgentLinks } from '../link/agent-links.ts'
import type { Policies } from '../network/policies.ts'
import { isOver, isUnschedulable, isUsable, type Pod, type PodName } from '../pod.ts'
import { parseQuantity } from '../../../kubernetes/quantity.ts'
import type { PodSettings } from '../spec/pod-spec.ts'
import type { Pods } from '../pods.ts'
import { createPullSecret } from '../pull-secret.ts'
import type { ServedImages } from '../served-images.ts'
import { reachPod } from '../link/reach-pod.ts'
import type { StartPace } from '../link/start-pace.ts'
import { warmShapeOf, type WarmShape } from './warm-shape.ts'

/** A Pod of no run. Its first process waits for commands. */
export type WarmPod = PodName & { readonly uid: string; readonly shape: WarmShape }

/**
 * Pods that are ready before a run asks for them, for the shapes that were asked for most. A run takes one by its record, and then by a
 * write to the Pod (`claimPod`). A warm Pod serves one run only.
 */
export type WarmPods = {
  /** Takes a warm Pod out for a new run. Null if none fits. The run's record must name it. */
  take(desired: DesiredRun, namespace: string): WarmPod | null
  /** Returns the one that was taken for a run, once. It is the run's from then on, if the run can claim it. */
  takenFor(run: RunId): WarmPod | null
  /** Whether a Pod without a run is one of these, and must stay. */
  owns(name: string): boolean
  /** Removes those that are no longer worth having, and makes missing ones unless starts are under way. */
  fillPool(): Promise<void>
  /** Makes no warm Pod during a start, which may need what it would take. */
  during(start: () => Promise<void>): Promise<void>
  /** Removes those that no run has taken, because their capacity is needed. Resolves once their nodes have ended them. */
  removeAll(): Promise<void>
  /** Keeps none from now on, because the cluster refused to let a run claim this one. */
  turnOff(refused: WarmPod): Promise<void>
  readonly isOn: boolean
  readonly pooledCount: number
  readonly starts: WarmStarts
}

type WarmPodsInput = {
  readonly most: number
  readonly settings: PodSettings
  readonly capacity: Capacity
  /** The images that this worker serves. Null: the cluster pulls all images. */
  readonly images: Pick<ServedImages, 'isServed'> | null
  readonly client: ApiClient
  readonly pods: Pods
  /** Null: no Pod has a policy. */
  readonly policies: Pick<Policies, 'ensure'> | null
  readonly links: AgentLinks
  readonly pace: StartPace
  /** Makes the name of a Pod. */
  readonly newName: () => string
  readonly signal: AbortSignal
  readonly clock: Clock
  readonly log: Log
}

/** How long a warm Pod may take until it accepts commands. Its image is on a node already, as its shape has started there. */
const MAKE_LIMIT_MS = 60_000
const MIB = 1024 ** 2

/** Makes the pool, which is empty until `fillPool`. `signal` ends the making of Pods. */
export function makeWarmPods(input: WarmPodsInput): WarmPods {
  const { capacity, pods, links, newName, clock, log, signal: closed } = input
  const demand = makeShapeDemand<WarmShape>(clock)
  const starts = { hit: 0, miss: 0, unsuited: 0 }
  const taken = new Map<RunId, WarmPod>()
  const names = new Set<string>()
  let startsUnderWay = 0
  let ready: readonly WarmPod[] = []
  let most = input.most

  const isThere = ({ name, uid }: WarmPod): boolean => {
    const pod = pods.get(name)
    return pod?.metadata.uid === uid && isUsable(pod)
  }
  const remove = async (removed: readonly WarmPod[]): Promise<void> => {
    ready = ready.filter((one) => !removed.includes(one))
    for (const { name } of removed) links.drop(name)
    await Promise.all(removed.map((one) => deletePod(one, one.uid)))
  }
  const removeSoon = (removed: readonly WarmPod[]): void => {
    remove(removed).catch((error: unknown) => {
      if (!closed.aborted) log.warn({ error }, 'a warm Pod could not be deleted')
    })
  }
  const deletePod = async (pod: PodName, uid: string | null): Promise<void> => {
    await pods.delete(pod, uid, 0)
    pods.forget(pod.name)
    names.delete(pod.name)
  }
  /** As much must stay free afterwards as the warm Pod takes, so that a start of its shape never waits for it. */
  const hasSpace = ({ vcpus, memoryMib }: WarmShape): boolean => {
    const all = pods.all().map(requestsOf)
    const used = (of: 'cpu' | 'memory'): number => all.reduce((sum, requests) => sum + requests[of], 0)
    return (
      used('cpu') + 2 * vcpus <= capacity.vcpus && used('memory') + 2 * memoryMib * MIB <= capacity.memory_mib * MIB
    )
  }
  const judgeOf = (uid: string) => (pod: Pod | undefined) => {
    if (pod?.metadata.uid !== uid || isOver(pod)) throw new Error('the Pod ended')
    if (isUnschedulable(pod)) throw new Error('the cluster has no node for it')
    return false
  }
  const make = async (shape: WarmShape): Promise<boolean> => {
    const target = { namespace: shape.namespace, name: newName(), org_id: shape.org_id }
    const signal = AbortSignal.any([closed, AbortSignal.timeout(MAKE_LIMIT_MS)])
    names.add(target.name) // before the Pod is seen, or it would be deleted as one without a run
    let uid: string | null = null
    try {
      if (shape.policy !== null) await input.policies?.ensure(shape.namespace, shape.policy, signal)
      const pod = await pods.create(target, shape.pod(target.name), signal)
      uid = pod.metadata.uid
      // After its Pod, which owns it from the beginning: a process that dies between the two leaves no Secret behind. A node that has
      // to pull the image, and looks for the Secret before it is there, tries again after 10 s.
      if (shape.credential !== null)
        await createPullSecret(input, target, { credential: shape.credential, owner: pod, signal })
      await reachPod(input, target, { judge: judgeOf(uid), signal })
      ready = [...ready, { ...target, uid, shape }]
      return true
    } catch (error) {
      if (!closed.aborted) log.info({ error, image: shape.image }, 'a Pod could not be made ready ahead of its start')
      demand.forget(shape)
      links.drop(target.name)
      await deletePod(target, uid)
      return false
    }
  }

  return {
    take(desired, namespace) {
      if (most === 0) return null
      const shape = warmShapeOf(desired, namespace, input)
      if (shape === null) {
        starts.unsuited += 1
        return null
      }
      demand.note(shape)
      const warm = ready.find((one) => one.shape.key === shape.key && isThere(one)) ?? null
      starts[warm === null ? 'miss' : 'hit'] += 1
      if (warm === null) return null
      ready = ready.filter((one) => one !== warm)
      taken.set(desired.run_id, warm)
      return warm
    },
    takenFor(run) {
      const found = taken.get(run) ?? null
      taken.delete(run)
      if (found !== null) names.delete(found.name)
      return found
    },
    owns: (name) => names.has(name),
    async fillPool() {
      const wanted = demand.wanted(most)
      const kept = wanted.flatMap(({ shape, count }) =>
        ready.filter((one) => one.shape.key === shape.key && isThere(one)).slice(0, count),
      )
      removeSoon(ready.filter((one) => !kept.includes(one)))
      for (const { shape, count } of wanted)
        while (ready.filter((one) => one.shape.key === shape.key).length < count)
          if (closed.aborted || startsUnderWay > 0 || !hasSpace(shape) || !(await make(shape))) break
    },
    async during(start) {
      startsUnderWay += 1
      try {
        await start()
      } finally {
        startsUnderWay -= 1
      }
    },
    removeAll: () => remove(ready),
    async turnOff(refused) {
      most = 0
      log.warn(
        { pod: refused.name },
        'no warm Pods are kept: the worker needs the right to update Pods, as packaging/kubernetes grants it',
      )
      await remove([refused, ...ready])
    },
    isOn: input.most > 0,
    get pooledCount() {
      return ready.length
    },
    get starts() {
      return { ...starts }
    },
  }
}

function requestsOf({ spec }: Pod): { readonly cpu: number; readonly memory: number } {
  const sum = (of: 'cpu' | 'memory'): number =>
    (spec?.containers ?? []).reduce((all, { resources }) => all + (parseQuantity(resources?.requests?.[of]) ?? 0), 0)
  return { cpu: sum('cpu'), memory: sum('memory') }
}
