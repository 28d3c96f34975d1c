/**
 * The Pods that serve the files of volumes: at most one for each volume, made for a request and kept for some time after the last one. They
 * belong to this process. One that a killed process left has no owner any more, so the driver deletes it as a Pod without a run.
 */
import { toolCommand } from '../../../../contract/workers/guest-tools.ts'
import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
import { interruptibleSleep, NOTIFIED, type Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import { makeSemaphore, type Semaphore } from '../../../../lib/semaphore.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import type { VolumeKey } from '../../../volumes/volume-storage.ts'
import { FILES_PODS_PER_ORG, type RunClaim } from '../claim.ts'
import type { AgentLinks } from '../link/agent-links.ts'
import { reachPod } from '../link/reach-pod.ts'
import type { StartPace } from '../link/start-pace.ts'
import { isOver, type PodName } from '../pod.ts'
import type { Pods } from '../pods.ts'
import type { PodSettings } from '../spec/pod-spec.ts'
import { FILES_CONTAINER, makeFilesPod } from './files-pod.ts'
import { describeFailure, judgeOf, unavailable } from './start-failures.ts'

export type FilesPods = {
  /**
   * Starts an operation of `guest/volume.pl` on a volume. Rejects with `VolumeFileError` of code `unavailable` if the cluster has no Pod for it.
   * `mount` makes the claim and is called before a Pod is made.
   */
  start(volume: VolumeKey, operation: readonly string[], mount: MountClaim): Promise<GuestProcess>
  /** Ends the Pod of a volume, if there is one: running operations get some seconds. Resolves once its node has ended it. */
  release(volume_id: string): Promise<void>
  /** Ends the Pod of a volume soon if no operation runs in it. */
  releaseIfIdle(volume_id: string): void
  /** Whether a Pod without a run is one of these, and must stay. */
  owns(name: string): boolean
  /** Ends all of them. */
  close(): Promise<void>
}

/** Resolves with the claim of a volume and the namespace that it is in. */
export type MountClaim = (signal: AbortSignal) => Promise<{ readonly claim: RunClaim; readonly namespace: string }>

type FilesPodsInput = {
  readonly settings: PodSettings
  readonly pods: Pods
  readonly links: AgentLinks
  readonly pace: StartPace
  /** The folder of the toolbox in the Pods. */
  readonly tools: string
  /** Makes the name of a Pod. */
  readonly newName: () => string
  /** Ends all waits. */
  readonly signal: AbortSignal
  readonly clock: Clock
  readonly log: Log
  /** How long a Pod stays after the last operation. Default: `IDLE_MS`. */
  readonly idleMs?: number
  /** How long a Pod may take to accept operations. Default: `START_LIMIT_MS`. */
  readonly startLimitMs?: number
}

/** How many Pods serve files at once, of all organizations. */
const FILES_PODS_MAX = 100
const IDLE_MS = 60_000
/** A volume must be made and attached, and the helper image may have to be pulled. The client asks again meanwhile. */
const START_LIMIT_MS = 120_000
/** How long operations may go on after a sandbox has asked for the volume. */
const RELEASE_LIMIT_MS = 10_000
/** How many operations on one volume run at once. Others wait. */
const OPERATIONS_MAX = 16
/** What a process of an operation may take of the node's memory. It needs a tenth of it. */
const ADDRESS_SPACE_BYTES = 256 * 1024 ** 2
const MEMORY_LIMIT = { resource: 'as', soft: ADDRESS_SPACE_BYTES, hard: ADDRESS_SPACE_BYTES }
/** After how many seconds without a write an unfinished file belongs to nobody. */
const STALE_SECS = 3_600

/** The Pod of a volume, from its first request on. */
type FilesPod = {
  readonly volume: VolumeKey
  readonly name: string
  readonly permits: Semaphore
  /** The Pod, once it accepts operations. */
  readonly ready: Promise<PodName>
  running: number
  lastUsedMs: number
  /** Ends the wait for the next operation. */
  idle: AbortController
  /** Resolves once the volume may have another Pod. */
  readonly left: PromiseWithResolvers<undefined>
  /** Set once no further operation may begin. Resolves when the Pod is gone. */
  ending: Promise<void> | null
}

/** Makes the set, which is empty. */
export function makeFilesPods(input: FilesPodsInput): FilesPods {
  const { settings, pods, links, tools, newName, clock, log, signal: closed } = input
  const { idleMs = IDLE_MS, startLimitMs = START_LIMIT_MS } = input
  const closing = new AbortController()
  const ended = AbortSignal.any([closed, closing.signal])
  const held = new Map<string, FilesPod>()
  const names = new Set<string>()
  const swept = new Set<string>()

  const isUsable = ({ name }: PodName): boolean => {
    const pod = pods.get(name)
    return pod !== undefined && pod.metadata.deletionTimestamp === undefined && !isOver(pod)
  }
  /** Lets the volume have another Pod. This one may take long to go, if its node doesn't answer. */
  const leave = ({ volume, name, left }: Pick<FilesPod, 'volume' | 'name' | 'left'>): void => {
    if (held.get(volume.volume_id)?.name === name) held.delete(volume.volume_id)
    links.drop(name)
    left.resolve(undefined)
  }
  const remove = async (one: FilesPod): Promise<void> => {
    const target = await one.ready.catch(() => null) // a Pod that could not be made was deleted then
    leave(one)
    if (target !== null) await deletePod(target)
  }
  const deletePod = async (target: PodName): Promise<void> => {
    await pods.delete(target, pods.get(target.name)?.metadata.uid ?? null, 0)
    pods.forget(target.name)
    names.delete(target.name)
  }
  const end = (one: FilesPod): Promise<void> => {
    one.idle.abort(NOTIFIED)
    one.ending ??= remove(one)
    return one.ending
  }
  const endSoon = (one: FilesPod): void => {
    end(one).catch((error: unknown) => {
      if (!closed.aborted) log.warn({ err: error, pod: one.name }, 'a Pod for files could not be deleted')
    })
  }
  const endWhenIdle = async (one: FilesPod): Promise<void> => {
    one.idle = new AbortController()
    const { signal } = one.idle
    await interruptibleSleep(clock, idleMs, AbortSignal.any([signal, closed]))
    if (!signal.aborted && !closed.aborted && one.running === 0) endSoon(one)
  }
  /** The Pods that must become fewer before an organization gets one more. */
  const inTheWay = ({ org_id }: VolumeKey): readonly FilesPod[] => {
    const all = [...held.values()]
    const ofOrg = all.filter(({ volume }) => volume.org_id === org_id)
    return ofOrg.length >= FILES_PODS_PER_ORG ? ofOrg : all.length >= FILES_PODS_MAX ? all : []
  }
  /** Ends the Pod that was not used for the longest time. */
  const makeSpace = async (among: readonly FilesPod[]): Promise<void> => {
    const idle = among.filter(({ running }) => running === 0).toSorted((a, b) => a.lastUsedMs - b.lastUsedMs)
    const one = among.find(({ ending }) => ending !== null) ?? idle[0]
    if (one === undefined) throw unavailable(`the files of ${String(among.length)} other volumes are in use`)
    await Promise.race([end(one), interruptibleSleep(clock, RELEASE_LIMIT_MS, ended)])
  }
  const make = async (
    { volume, name, left }: Pick<FilesPod, 'volume' | 'name' | 'left'>,
    mount: MountClaim,
  ): Promise<PodName> => {
    const limit = AbortSignal.timeout(startLimitMs)
    const signal = AbortSignal.any([ended, limit])
    let target: PodName | null = null
    try {
      const { claim, namespace } = await mount(signal)
      target = { namespace, name }
      names.add(name) // before the Pod is seen, or it would be deleted as one without a run
      const { metadata } = await pods.create(target, makeFilesPod(name, claim, settings), signal)
      await reachPod({ ...input, container: FILES_CONTAINER }, target, { judge: judgeOf(metadata.uid), signal })
      return target
    } catch (error) {
      const why = describeFailure(error, { isLate: limit.aborted, pod: pods.get(name) })
      leave({ volume, name, left })
      if (target !== null) deletePod(target).catch(() => undefined) // it waits for the API server until the driver is closed
      if (error instanceof VolumeFileError || ended.aborted) throw error
      log.warn({ err: error, volume_id: volume.volume_id }, 'the files of a volume could not be served')
      throw unavailable(`the Pod that serves the files of the volume did not start: ${why}`, error)
    }
  }
  /** The Pod of a volume with one more operation, which is made or waited for. */
  const acquire = async (volume: VolumeKey, mount: MountClaim): Promise<FilesPod> => {
    for (;;) {
      const known = held.get(volume.volume_id)
      if (known === undefined) {
        const others = inTheWay(volume)
        if (others.length > 0) {
          await makeSpace(others)
          continue
        }
        const pod = { volume, name: newName(), left: Promise.withResolvers<undefined>() }
        const one: FilesPod = {
          ...pod,
          permits: makeSemaphore(OPERATIONS_MAX),
          ready: make(pod, mount),
          running: 1,
          lastUsedMs: clock.monotonicMs(),
          idle: new AbortController(),
          ending: null,
        }
        held.set(volume.volume_id, one)
        await one.ready
        return one
      }
      if (known.ending !== null) {
        await known.left.promise
        continue
      }
      known.running += 1
      known.idle.abort(NOTIFIED)
      if (isUsable(await known.ready)) return known
      finish(known)
      lose(known)
    }
  }
  /** Gives up a Pod that is gone or can't be reached. */
  const lose = (one: FilesPod): void => {
    swept.delete(one.volume.volume_id) // what ran in it may have left unfinished files
    leave(one)
    endSoon(one)
  }
  const finish = (one: FilesPod): void => {
    one.running -= 1
    one.lastUsedMs = clock.monotonicMs()
    if (one.running === 0 && one.ending === null) void endWhenIdle(one)
  }
  const begin = async (one: FilesPod, operation: readonly string[]): Promise<GuestProcess> => {
    const target = await one.ready
    const link = await links.of(target, ended).catch((error: unknown) => {
      throw new PodLost(`the Pod ${target.name} can't be reached`, { cause: error })
    })
    const command = toolCommand('volume.pl', [process.arch, ...operation], tools)
    const plain = { env: ['LC_ALL=C'], hasOwnEnv: false, cwd: '/', user: null, tty: null }
    return await link.start({ ...plain, command, rlimits: [MEMORY_LIMIT] })
  }
  /** Starts an operation as soon as fewer than `OPERATIONS_MAX` run. Notes its end. */
  const run = async (one: FilesPod, operation: readonly string[]): Promise<GuestProcess> => {
    const started = Promise.withResolvers<GuestProcess>()
    const over = one.permits.run(async () => {
      const process = await begin(one, operation)
      started.resolve(process)
      await process.exited
    })
    over.catch(started.reject).finally(() => {
      finish(one)
    })
    return await started.promise
  }
  /** Removes unfinished files of operations that were killed, once for each volume. */
  const sweepSoon = (one: FilesPod): void => {
    if (swept.has(one.volume.volume_id)) return
    swept.add(one.volume.volume_id)
    one.running += 1
    run(one, ['sweep', String(STALE_SECS)]).then(
      (process) => {
        process.stdin.end()
        process.stdout.resume()
        process.stderr?.resume()
      },
      (error: unknown) => {
        log.warn({ err: error }, 'unfinished files in a volume could not be deleted')
      },
    )
  }

  return {
    async start(volume, operation, mount) {
      const one = await acquire(volume, mount)
      try {
        const process = await run(one, operation)
        sweepSoon(one)
        return process
      } catch (error) {
        if (!(error instanceof PodLost)) throw error
        lose(one)
      }
      return await run(await acquire(volume, mount), operation)
    },
    async release(volume_id) {
      const one = held.get(volume_id)
      if (one === undefined) return
      one.ending ??= (async () => {
        one.idle.abort(NOTIFIED)
        const untilMs = clock.monotonicMs() + RELEASE_LIMIT_MS
        while (one.running > 0 && clock.monotonicMs() < untilMs) await clock.sleep(RELEASE_LOOK_MS, closed)
        await remove(one)
      })()
      await one.ending
    },
    releaseIfIdle(volume_id) {
      const one = held.get(volume_id)
      if (one?.running === 0) endSoon(one)
    },
    owns: (name) => names.has(name),
    async close() {
      closing.abort(new Error('the driver is closing'))
      await Promise.all([...held.values()].map(end))
    },
  }
}

class PodLost extends Error {}

const RELEASE_LOOK_MS = 50
