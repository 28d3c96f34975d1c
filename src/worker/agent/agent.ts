/**
 * The worker's agent: it reports all that it observes to the control plane, takes over what is desired of it, and makes the
 * one into the other. It stores no truth: what it observes comes from the driver at each sync, what is desired from each
 * answer.
 */
import type { VolumeFiles } from '../../contract/volumes/volume-protocol.ts'
import type { DesiredRun, SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import type { SandboxId, WorkerId } from '../../domain/ids.ts'
import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { Driver, Probe } from '../drivers/driver.ts'
import type { SandboxLogs } from '../logs/logs.ts'
import type { VolumeStorage } from '../volumes/volume-storage.ts'
import type { ControlPlane } from './control-plane.ts'
import { makeFence, type Fence } from './fence.ts'
import { makeLease, type Lease } from './lease.ts'
import { destroyAllRuns, reconcileRuns } from './reconcile-runs.ts'
import { keepStandingBy } from './stand-by.ts'
import { makeSteps, type Steps } from './steps.ts'
import { beginStream, type StreamRequest } from './streams.ts'
import { keepSyncing, type ReportMemory } from './sync-loop.ts'
import { makeVolumeReconciler, type VolumeReconciler } from './volume-reconciler.ts'

export type AgentDeps = {
  readonly worker_id: WorkerId
  /** See `incarnation.ts`. */
  readonly incarnation: string
  readonly driver: Driver
  readonly storage: VolumeStorage
  /** How often what volumes use is measured, in milliseconds. */
  readonly storageSampleMs: number
  /** The files of a volume by its folder on this machine. */
  readonly filesOf: (root: string) => VolumeFiles
  readonly logs: Pick<SandboxLogs, 'read' | 'discard'>
  readonly controlPlane: ControlPlane
  readonly clock: Clock
  readonly log: Log
  /** Whether a worker that can't sync destroys its runs. Off only where control plane and worker are one process. */
  readonly fencesItself: boolean
  /** The lease after whose end it does so; without one, only this process knows of it. */
  readonly lease?: Lease
  /** Called after each sync that was answered, with its answer: from the first on, the control plane knows what runs here. */
  readonly onSynced?: (answer: SyncAnswer) => void
}

/** What changes while an agent runs. */
export type AgentState = {
  /** What this machine can run, as of the last probe. */
  probe: Probe
  /** The number of the last report. */
  seq: number
  /** The number of the latest report whose answer was applied. Earlier ones, that come later, are not. */
  appliedSeq: number
  /** Syncs that are not answered yet, by the number of their report. */
  readonly inFlight: Map<number, AbortController>
  /** Whether a report would say something new. */
  hasNews: boolean
  /** Ends the pause of the sync loop. */
  pause: AbortController
  reportMemory: ReportMemory
  /** Null before the first answer: until then nothing is removed. */
  desiredRuns: readonly DesiredRun[] | null
  desiredVersion: string | null
  isReconciling: boolean
  mustReconcile: boolean
  /** Sandboxes that are gone and whose writable layers are to be deleted, by the last answer. */
  discards: readonly SandboxId[]
  /** Ends the wait for them. */
  discardsDone: AbortController
  /** Tickets that were dialled and may still be open. */
  readonly dialledTickets: Set<string>
}

/** An agent: what it was given, what it is made of, and its state. `signal` ends it. */
export type Agent = {
  readonly deps: AgentDeps
  readonly signal: AbortSignal
  readonly lease: Lease
  readonly fence: Fence
  readonly steps: Steps
  readonly volumes: VolumeReconciler
  readonly state: AgentState
}

/** How often the machine's capacity and the driver's abilities are probed again. */
const PROBE_MS = 15_000
/** How long a shutdown waits for steps that are under way. A start that takes longer is begun again by the next incarnation. */
const SHUTDOWN_WAIT_MS = 3_000

/**
 * Runs until `signal`, and sandboxes go on running afterwards. Rejects when the driver can't work on this machine, and with
 * `WorkerRemoved` once the worker was removed and its runs are destroyed.
 */
export async function runAgent(deps: AgentDeps, stop: AbortSignal): Promise<void> {
  const failed = new AbortController()
  const signal = AbortSignal.any([stop, failed.signal])
  const agent = makeAgent(deps, await deps.driver.probe(), signal)
  const unwatch = deps.driver.watch(() => noteNews(agent.state))
  const serve = (request: StreamRequest): void => serveStream(agent, request)
  try {
    await Promise.all([
      keepSyncing(agent, serve),
      keepProbing(agent),
      agent.volumes.keepMeasuring(),
      keepStandingBy({ ...deps, serve }, signal),
      agent.fence.enforce(() => destroyAllRuns(agent), signal),
    ])
  } finally {
    failed.abort(new Error('the worker ends'))
    unwatch()
    await agent.steps.waitUntilIdle(SHUTDOWN_WAIT_MS)
  }
}

function makeAgent(deps: AgentDeps, probe: Probe, signal: AbortSignal): Agent {
  const state: AgentState = {
    probe,
    seq: 0,
    appliedSeq: 0,
    inFlight: new Map(),
    hasNews: true,
    pause: new AbortController(),
    reportMemory: { content: null, sinceSeq: 0, generation: null, wholeAtMs: 0 },
    desiredRuns: null,
    desiredVersion: null,
    isReconciling: false,
    mustReconcile: false,
    discards: [],
    discardsDone: new AbortController(),
    dialledTickets: new Set(),
  }
  const onNews = (): void => noteNews(state)
  const onEnd = (): void => {
    onNews()
    if (!signal.aborted) void reconcileRuns(agent)
  }
  const lease = deps.lease ?? makeLease(deps.clock)
  const agent: Agent = {
    deps,
    signal,
    lease,
    fence: makeFence({ ...deps, lease }),
    steps: makeSteps({ ...deps, onEnd }, signal),
    volumes: makeVolumeReconciler({ ...deps, sampleMs: deps.storageSampleMs, onNews }, signal),
    state,
  }
  return agent
}

/** Has the next report sent at once. */
function noteNews(state: AgentState): void {
  state.hasNews = true
  state.pause.abort(NOTIFIED)
}

function serveStream({ deps, volumes, signal }: Agent, request: StreamRequest): void {
  const { driver, log, logs, storage, filesOf } = deps
  const openFiles = async (volume: Parameters<VolumeStorage['open']>[0]): Promise<VolumeFiles> =>
    filesOf(await storage.open(volume))
  beginStream({ driver, log, logs, openFiles, onFilesChanged: () => volumes.noteChange() }, request, signal)
}

async function keepProbing({ deps: { driver, clock, log }, state, signal }: Agent): Promise<void> {
  while (!signal.aborted) {
    await interruptibleSleep(clock, PROBE_MS, signal)
    if (signal.aborted) return
    try {
      state.probe = await driver.probe()
    } catch (error) {
      log.warn({ error }, 'the driver can no longer work on this machine')
    }
  }
}
