/**
 * The worker's agent. It reports the observed runs and volumes to the control plane, receives the desired ones, and
 * reconciles the two. It stores no state on disk: each sync observes the driver again, and the control plane sends the
 * desired state again to each new process.
 */
import type { RunId, VolumeId } from '../../domain/ids.ts'
import { interruptibleSleep, NOTIFIED } from '../../lib/clock.ts'
import { NO_DISK_RESERVE } from '../disk-reserve.ts'
import type { Probe } from '../drivers/driver.ts'
import type { Agent, AgentDeps, AgentState } from './agent-state.ts'
import { makeDiskGuard } from './disk-guard.ts'
import { makeFence } from './fence.ts'
import { makeRenewDeadline } from './renew-deadline.ts'
import { destroyAllRuns, reconcileRuns } from './reconcile-runs.ts'
import { keepStandingBy } from './stand-by.ts'
import { makeStartReports } from './start-reports.ts'
import { makeSteps } from './steps.ts'
import { beginStream, type StreamRequest } from './streams.ts'
import { keepSyncing } from './sync-loop.ts'
import { makeVolumeReconciler } from './volume-reconciler.ts'

/** How often the machine's capacity and the driver's abilities are probed again. */
const PROBE_MS = 15_000
/**
 * How long a shutdown waits for steps that are under way. If a sandbox's start takes longer, the worker's next process
 * repeats it.
 */
const SHUTDOWN_WAIT_MS = 3_000

/**
 * Runs the agent until `stop` aborts. Sandboxes keep running afterwards. Rejects when the driver can't work on this
 * machine. If the control plane removed the worker, the agent destroys all runs and rejects with `WorkerRemoved`.
 */
export async function runAgent(deps: AgentDeps, stop: AbortSignal): Promise<void> {
  const failed = new AbortController()
  const signal = AbortSignal.any([stop, failed.signal])
  const agent = makeAgent(deps, await deps.driver.probe(), signal)
  const unwatch = deps.driver.watch(() => noteNews(agent.state))
  const onLeaving = (): void => noteNews(agent.state)
  deps.leaving?.addEventListener('abort', onLeaving)
  const serve = (request: StreamRequest): void => serveStream(agent, request)
  try {
    await Promise.all([
      keepSyncing(agent, serve),
      keepProbing(agent),
      agent.volumes.keepMeasuring(),
      deps.diskReserve === undefined ? null : agent.diskGuard.keepWatching(signal),
      keepStandingBy({ ...deps, serve }, signal),
      agent.fence.enforce((options) => destroyAllRuns(agent, options), signal),
    ])
  } finally {
    failed.abort(new Error('the worker ends'))
    unwatch()
    deps.leaving?.removeEventListener('abort', onLeaving)
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
    startReports: makeStartReports(),
    desiredRuns: null,
    laterRuns: new Set(),
    desiredVersion: null,
    desiredBy: { answered_by: undefined, sentSeq: 0 },
    destroyedRuns: new Map(),
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
  const volumesOf = (run: RunId): readonly VolumeId[] =>
    state.desiredRuns?.find(({ run_id }) => run_id === run)?.volumes.map(({ volume_id }) => volume_id) ?? []
  const renewDeadline = deps.renewDeadline ?? makeRenewDeadline(deps.clock)
  const agent: Agent = {
    deps,
    signal,
    renewDeadline,
    fence: makeFence({ ...deps, renewDeadline }),
    steps: makeSteps({ ...deps, onEnd }, signal),
    volumes: makeVolumeReconciler({ ...deps, sampleMs: deps.storageSampleMs, onNews }, signal),
    diskGuard: makeDiskGuard({ ...deps, reserve: deps.diskReserve ?? NO_DISK_RESERVE, volumesOf, onNews }),
    state,
  }
  return agent
}

/** Records that there is something new to report. The sync loop then sends its next report at once. */
function noteNews(state: AgentState): void {
  state.hasNews = true
  state.pause.abort(NOTIFIED)
}

function serveStream({ deps, volumes, signal }: Agent, request: StreamRequest): void {
  beginStream({ ...deps, onFilesChanged: () => volumes.noteChange() }, request, signal)
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
