/**
 * The worker's loop: it tells the control plane all that it sees, takes in all that is wanted, and makes the one into
 * the other. It keeps no truth: what it sees comes from the driver at each sync, what is wanted from each answer.
 */
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import {
  WORKER_PROTOCOL_VERSION,
  type ObservedRun,
  type StreamTicket,
  type SyncAnswer,
  type SyncRequest,
  type DesiredRun,
} from '../../contract/workers/worker-protocol.ts'
import { decide, withStoppedRuns } from '../../domain/workers/decide.ts'
import type { WorkerId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock, NOTIFIED } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { ControlPlane } from './control-plane.ts'
import { makeDiscards } from './discards.ts'
import type { Driver, Probe } from '../drivers/driver.ts'
import { makeFence } from './fence.ts'
import { makeLease, type Lease } from './lease.ts'
import { keepProbing } from './keep-probing.ts'
import { perform } from './perform.ts'
import type { SandboxLogs } from '../logs/logs.ts'
import { keepStandingBy } from './stand-by.ts'
import { makeSteps } from './steps.ts'
import { beginStream, type StreamDeps, type StreamRequest } from './streams.ts'
import { makeVolumeReconciler } from './volume-reconciler.ts'
import type { VolumeKey, VolumeStorage } from '../volumes/volume-storage.ts'

export type AgentDeps = {
  readonly worker_id: WorkerId
  /** See `life.ts`. */
  readonly life: string
  readonly driver: Driver
  readonly storage: VolumeStorage
  /** How often what volumes take is measured, in milliseconds. */
  readonly storageSampleMs: number
  /** The files of a volume by its folder on this machine. */
  readonly filesOf: (root: string) => VolumeFiles
  readonly logs: Pick<SandboxLogs, 'read' | 'discard'>
  readonly controlPlane: ControlPlane
  readonly clock: Clock
  readonly log: Log
  /** Whether a worker that can't sync destroys its runs. Off only where control plane and worker are one process. */
  readonly fencesItself: boolean
  /** How long that is; without one, only this process knows of it. */
  readonly lease?: Lease
  /** Called after each sync that was answered, with its answer: from the first on, the control plane knows what runs here. */
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** How long after a failed sync the next is tried. */
const RETRY_MS = 500
/** How long a sync that has nothing to say may wait for one that is held. */
const IDLE_MS = 15_000
/** How long a shutdown waits for steps that are under way. */
const SETTLE_MS = 3_000
/** One that is held and one with fresh news. */
const SYNCS_AT_ONCE = 2

/**
 * Runs until `signal`, and sandboxes go on running afterwards. Rejects when the driver can't work on this machine, and with
 * `WorkerRemoved` once the worker was removed and its runs are destroyed.
 */
export async function runAgent(deps: AgentDeps, stop: AbortSignal): Promise<void> {
  const failed = new AbortController()
  const signal = AbortSignal.any([stop, failed.signal])
  const agent = makeAgent(deps, await deps.driver.probe(), signal)
  const unwatch = deps.driver.watch(agent.noteNews)
  try {
    const looks = [agent.keepSyncing(), agent.keepProbing(), agent.keepMeasuring()]
    await Promise.all([...looks, agent.keepStandingBy(), agent.keepFenced()])
  } finally {
    failed.abort(new Error('the worker ends'))
    unwatch()
    await agent.settle()
  }
}

function makeAgent(deps: AgentDeps, firstProbe: Probe, signal: AbortSignal) {
  const { driver, log, clock } = deps
  let probe = firstProbe
  let seq = 0
  let appliedSeq = 0
  const inFlight = new Map<number, AbortController>()
  let hasNews = true
  let wanted: readonly DesiredRun[] | null = null
  let wantedVersion: string | null = null
  const discards = makeDiscards(deps, signal)
  const lease = deps.lease ?? makeLease(clock)
  const fence = makeFence({ ...deps, lease })
  let sleeper = new AbortController()
  let isActing = false
  let mustAct = false
  const dialled = new Set<string>()

  const wakeUp = (): void => {
    sleeper.abort(NOTIFIED)
  }
  const noteNews = (): void => {
    hasNews = true
    wakeUp()
  }
  const steps = makeSteps(
    {
      clock,
      log,
      onEnd: () => {
        noteNews()
        if (!signal.aborted) act().catch(reportBlindness)
      },
    },
    signal,
  )
  const duty = makeVolumeReconciler(
    { storage: deps.storage, clock, log, sampleMs: deps.storageSampleMs, onNews: noteNews },
    signal,
  )
  const streamDeps: StreamDeps = {
    driver,
    log,
    openFiles: async (volume) => deps.filesOf(await deps.storage.open(volume)),
    logs: deps.logs,
    onFilesChanged: () => duty.noteChange(),
  }
  const reportBlindness = (error: unknown): void => {
    log.error({ error }, 'the worker could not decide its next step; the next sync does')
  }

  /** All that the driver holds, the starts that it does not list yet, and stops of what was never begun. */
  const look = async (): Promise<readonly ObservedRun[]> => {
    const listed = await driver.list()
    const known = new Set(listed.map(({ run_id }) => run_id))
    const held = [...listed, ...steps.startingRuns().filter(({ run_id }) => !known.has(run_id))]
    return withStoppedRuns(wanted ?? [], held)
  }

  const report = async (): Promise<SyncRequest> => {
    const [seen, stored] = [await look(), await driver.listStored()]
    return {
      protocol: WORKER_PROTOCOL_VERSION,
      worker_id: deps.worker_id,
      life: deps.life,
      seq: ++seq,
      known_version: wantedVersion,
      capacity: probe.capacity,
      driver: probe.report,
      seen,
      stored,
      dialled: [...dialled],
      ...(await duty.report()),
    }
  }

  /** Sends what is seen now. Resolves once that is looked up, so that a later look is never sent under a lower number. */
  const beginSync = async (): Promise<void> => {
    hasNews = false
    try {
      const request = await report()
      const overtaken = new AbortController()
      inFlight.set(request.seq, overtaken)
      exchange(request, AbortSignal.any([signal, overtaken.signal])).catch(reportBlindness)
    } catch (error) {
      await pauseAfter(error)
    }
  }

  const exchange = async (request: SyncRequest, either: AbortSignal): Promise<void> => {
    const sentAtMs = lease.nowMs()
    try {
      const answer = await deps.controlPlane.sync(request, either, () => lease.renew(sentAtMs))
      await lease.renew(sentAtMs)
      if (request.seq > appliedSeq) await apply(request, answer)
      deps.onSynced?.(answer)
    } catch (error) {
      fence.noteFailure(error)
      if (request.seq > appliedSeq) await pauseAfter(error)
    } finally {
      inFlight.delete(request.seq)
      wakeUp()
    }
  }

  const pauseAfter = async (error: unknown): Promise<void> => {
    if (signal.aborted) return
    log.warn({ error }, 'a sync with the control plane failed; it is tried again')
    await interruptibleSleep(clock, RETRY_MS, signal)
  }

  const apply = async (request: SyncRequest, answer: SyncAnswer): Promise<void> => {
    appliedSeq = request.seq
    for (const [seq, overtaken] of inFlight)
      if (seq < appliedSeq) overtaken.abort(new Error('a later sync was answered'))
    if (answer.wanted !== null) {
      wanted = answer.wanted
      wantedVersion = answer.wanted_version
    }
    const open = new Set(answer.streams.map(({ ticket }) => ticket))
    for (const ticket of request.dialled) if (!open.has(ticket)) dialled.delete(ticket)
    for (const stream of answer.streams) dial(stream)
    discards.setPending(answer.discard)
    duty.apply(request, answer)
    await act().catch(reportBlindness)
    // While these last, every answer asks for the same: waiting for them keeps the worker from asking over and over.
    await Promise.all([removeVolumes(answer.discard_volumes), discards.waitUntilDone(RETRY_MS)])
  }

  const removeVolumes = async (volumes: readonly VolumeKey[]): Promise<void> => {
    const removals = volumes.map(
      (volume) =>
        new Promise<void>((resolve) => {
          const work = (): Promise<void> => duty.remove(volume).finally(resolve)
          steps.begin({ id: volume.volume_id, starting: null, work })
        }),
    )
    if (removals.length === 0) return
    const settled = new AbortController()
    await Promise.race([Promise.all(removals), interruptibleSleep(clock, RETRY_MS, AbortSignal.any([settled.signal, signal]))]) // prettier-ignore
    settled.abort(NOTIFIED)
  }

  /** One look and its steps at a time: two at once could begin what the other one has just undone. */
  const act = async (): Promise<void> => {
    mustAct = true
    if (isActing) return
    isActing = true
    try {
      while (mustAct) {
        mustAct = false
        beginSteps(await look())
      }
    } finally {
      isActing = false
    }
  }

  const beginSteps = (held: readonly ObservedRun[]): void => {
    if (wanted === null) return
    const orders = new Map(wanted.map((run) => [run.run_id, run]))
    for (const sandbox of discards.ready(held))
      steps.begin({ id: sandbox, starting: null, work: () => discards.discard(sandbox) })
    for (const action of decide(wanted, held)) {
      const { kind, run_id } = action
      if (kind === 'start' && fence.isUp()) continue // an answer that comes late wants what was called lost meanwhile
      const order = orders.get(run_id)
      if (kind !== 'start') steps.cancelStart(run_id)
      const starting: ObservedRun | null =
        kind === 'start' && order !== undefined ? { run_id, sandbox_id: order.sandbox_id, phase: 'starting' } : null
      steps.begin({ id: run_id, starting, work: (abort) => perform(driver, action, order, abort) })
    }
  }

  const destroyAll = async (): Promise<number> => {
    wanted = []
    wantedVersion = null
    appliedSeq = seq // what was told of runs that are being destroyed must not have them begun anew
    try {
      await act()
      return (await look()).length
    } catch (error) {
      reportBlindness(error)
      return Number.POSITIVE_INFINITY
    } finally {
      appliedSeq = seq
    }
  }

  const dial = ({ ticket, url, ...asked }: StreamTicket): void => {
    if (dialled.has(ticket)) return
    dialled.add(ticket)
    serve({ asked, connect: () => deps.controlPlane.dial({ ticket, url }, signal) })
  }
  const serve = (wish: StreamRequest): void => beginStream(streamDeps, wish, signal)

  return {
    noteNews,
    keepMeasuring: () => duty.keepMeasuring(),
    keepStandingBy: () => keepStandingBy({ controlPlane: deps.controlPlane, clock, log, serve }, signal),
    async keepSyncing(): Promise<void> {
      while (!signal.aborted) {
        sleeper = new AbortController()
        if (inFlight.size === 0 || (hasNews && inFlight.size < SYNCS_AT_ONCE)) await beginSync()
        else await interruptibleSleep(clock, IDLE_MS, AbortSignal.any([sleeper.signal, signal]))
      }
    },
    keepProbing: () => keepProbing(deps, (found) => (probe = found), signal),
    keepFenced: () => fence.keep(destroyAll, signal),
    /** Lets what is under way come to its end; a start that takes longer is begun again by the next life. */
    settle: () => steps.waitUntilIdle(SETTLE_MS),
  }
}
