/**
 * The Pods that serve the files of volumes: at most one for each volume, made for a request and kept for some time after the last one. They
 * belong to this process. One that a killed process left has no owner any more, so the driver deletes it as a Pod without a run.
 */
import { setMaxListeners } from 'node:events'
import { VolumeFileError } from '../../../../contract/volumes/volume-protocol.ts'
import { interruptibleSleep, NOTIFIED, type Clock, waitAtMost } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import type { VolumeKey } from '../../../volumes/volume-storage.ts'
import type { AgentLinks } from '../link/agent-links.ts'
import { reachPod } from '../link/reach-pod.ts'
import type { StartPace } from '../link/start-pace.ts'
import { isUsable, type OrgPod, type PodName } from '../pod.ts'
import type { Pods } from '../pods.ts'
import type { PodSettings } from '../spec/pod-spec.ts'
import type { Asking, MountClaim, Wait } from './asking.ts'
import { FILES_CONTAINER, makeFilesPod } from './files-pod.ts'
import { nextToEnd, podsInTheWay, type FilesPod } from './held-pods.ts'
import { makeOperationPermits, PodLost, startOperation } from './operations.ts'
import { awaitInTime, describeFailure, describeUnready, judgeOf, notStarted, unavailable } from './start-failures.ts'

export type FilesPods = {
  /**
   * Starts an operation of `guest/volume.pl` on a volume. Rejects with `VolumeFileError` of code `unavailable` if the
   * cluster has no Pod for it in time, and with the reason of the signal of a sandbox's start, which also ends the
   * operation.
   */
  start(volume: VolumeKey, operation: readonly string[], asking: Asking): Promise<GuestProcess>
  /** Ends the Pod of a volume, if there is one: running operations get some seconds. Resolves once its node has ended it. */
  release(volume_id: string): Promise<void>
  /** Ends the Pod of a volume as soon as no operation runs in it, unless one begins until then. */
  releaseWhenIdle(volume_id: string): void
  /** Whether a Pod without a run is one of these, and must stay. */
  owns(name: string): boolean
  /** Ends all of them. */
  close(): Promise<void>
}

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
  /** How long a client's request waits for a Pod. Default: `START_LIMIT_MS`. */
  readonly startLimitMs?: number
}

const IDLE_MS = 60_000
/** A volume must be made and attached, and the helper image may have to be pulled. The client asks again meanwhile. */
const START_LIMIT_MS = 120_000
/** How long operations may go on after a sandbox has asked for the volume. */
const RELEASE_LIMIT_MS = 10_000
/** After how many seconds without a write an unfinished file belongs to nobody. */
const STALE_SECS = 3_600

/** Makes the set, which is empty. */
export function makeFilesPods(input: FilesPodsInput): FilesPods {
  const { settings, pods, links, tools, newName, clock, log, signal: closed } = input
  const { idleMs = IDLE_MS, startLimitMs = START_LIMIT_MS } = input
  const closing = new AbortController()
  const ended = AbortSignal.any([closed, closing.signal])
  setMaxListeners(0, ended) // each operation adds one
  const held = new Map<string, FilesPod>()
  const names = new Set<string>()
  const swept = new Set<string>()
  /** Resolves once the use of a Pod has changed. */
  let change = Promise.withResolvers<undefined>()
  const noteChange = (): void => {
    change.resolve(undefined)
    change = Promise.withResolvers()
  }

  /** Lets the volume have another Pod. This one may take long to go, if its node doesn't answer. */
  const leave = ({ volume, name, left }: Pick<FilesPod, 'volume' | 'name' | 'left'>): void => {
    if (held.get(volume.volume_id)?.name === name) held.delete(volume.volume_id)
    links.drop(name)
    left.resolve(undefined)
    noteChange()
  }
  const remove = async (one: FilesPod): Promise<void> => {
    one.making.abort(unavailable('the Pod that serves the files of the volume is no longer wanted'))
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
      if (!closed.aborted) log.warn({ error, pod: one.name }, 'a Pod for files could not be deleted')
    })
  }
  const endWhenIdle = async (one: FilesPod): Promise<void> => {
    one.idle = new AbortController()
    const { signal } = one.idle
    await interruptibleSleep(clock, idleMs, signal, closed)
    if (!signal.aborted && !closed.aborted && one.running === 0) endSoon(one)
  }
  /** Ends the Pod that was not used for the longest time. If all are in use, a start waits for a change. */
  const makeSpace = async (among: readonly FilesPod[], { signal, isStart }: Wait): Promise<void> => {
    const one = nextToEnd(among)
    const inUse = (): VolumeFileError => unavailable(`the files of ${String(among.length)} other volumes are in use`)
    if (one === undefined && !isStart) throw inUse()
    const space = one === undefined ? change.promise : waitAtMost(clock, RELEASE_LIMIT_MS, end(one), ended)
    await awaitInTime(space, signal, inUse)
  }
  const make = async (
    { volume, name, left, making }: Pick<FilesPod, 'volume' | 'name' | 'left' | 'making'>,
    mount: MountClaim,
  ): Promise<OrgPod> => {
    const signal = AbortSignal.any([ended, making.signal])
    let target: OrgPod | null = null
    try {
      const { claim, namespace } = await mount(signal)
      target = { namespace, name, org_id: volume.org_id }
      names.add(name) // before the Pod is seen, or it would be deleted as one without a run
      const { metadata } = await pods.create(target, makeFilesPod(name, claim, settings), signal)
      await reachPod({ ...input, container: FILES_CONTAINER }, target, { judge: judgeOf(metadata.uid), signal })
      return target
    } catch (error) {
      leave({ volume, name, left })
      if (target !== null) deletePod(target).catch(() => undefined) // it waits for the API server until the driver is closed
      making.signal.throwIfAborted()
      if (error instanceof VolumeFileError || ended.aborted) throw error
      log.warn({ error, volume_id: volume.volume_id }, 'the files of a volume could not be served')
      throw notStarted(describeFailure(error), error)
    }
  }
  const add = (volume: VolumeKey, mount: MountClaim): FilesPod => {
    const pod = { volume, name: newName(), left: Promise.withResolvers<undefined>(), making: new AbortController() }
    const one: FilesPod = {
      ...pod,
      permits: makeOperationPermits(),
      ready: make(pod, mount),
      running: 0,
      lastUsedMs: clock.monotonicMs(),
      isKept: true,
      idle: new AbortController(),
      ending: null,
    }
    held.set(volume.volume_id, one)
    return one
  }
  /** The Pod of a volume with one more operation, which is made or waited for. One that nobody waits for any more is given up. */
  const acquire = async (volume: VolumeKey, mount: MountClaim, wait: Wait): Promise<FilesPod> => {
    for (;;) {
      const known = held.get(volume.volume_id)
      if (known !== undefined && known.ending !== null) {
        const late = (reason: Error): VolumeFileError => notStarted('the one before has not ended', reason)
        await awaitInTime(known.left.promise, wait.signal, late)
        continue
      }
      const others = known === undefined ? podsInTheWay([...held.values()], volume) : []
      if (others.length > 0) {
        await makeSpace(others, wait)
        continue
      }
      const one = known ?? add(volume, mount)
      one.running += 1
      one.isKept = true
      one.idle.abort(NOTIFIED)
      const late = (reason: Error): VolumeFileError => notStarted(describeUnready(pods.get(one.name)), reason)
      const target = await awaitInTime(one.ready, wait.signal, late).catch((error: unknown) => {
        one.running -= 1
        if (one.running === 0) endSoon(one)
        throw error
      })
      if (known === undefined || isUsable(pods.get(target.name))) return one
      finish(one)
      lose(one)
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
    if (one.running > 0) return
    noteChange()
    if (one.ending !== null) return
    if (one.isKept) void endWhenIdle(one)
    else endSoon(one)
  }
  const run = async (one: FilesPod, words: readonly string[], signal: AbortSignal = ended): Promise<GuestProcess> => {
    const { permits } = one
    const onOver = (): void => {
      finish(one)
    }
    const target = await one.ready
    return await startOperation({ links, tools, ended }, { target, permits, words, signal, onOver })
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
        log.warn({ error }, 'unfinished files in a volume could not be deleted')
      },
    )
  }

  return {
    async start(volume, operation, { mount, startSignal }) {
      const acquireInTime = (): Promise<FilesPod> => {
        const signal = startSignal ?? AbortSignal.timeout(startLimitMs)
        return acquire(volume, mount, { signal, isStart: startSignal !== undefined })
      }
      const one = await acquireInTime()
      try {
        const process = await run(one, operation, startSignal)
        sweepSoon(one)
        return process
      } catch (error) {
        if (!(error instanceof PodLost)) throw error
        lose(one)
      }
      return await run(await acquireInTime(), operation, startSignal)
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
    releaseWhenIdle(volume_id) {
      const one = held.get(volume_id)
      if (one === undefined) return
      one.isKept = false
      if (one.running === 0) endSoon(one)
    },
    owns: (name) => names.has(name),
    async close() {
      closing.abort(new Error('the driver is closing'))
      await Promise.all([...held.values()].map(end))
    },
  }
}

const RELEASE_LOOK_MS = 50
