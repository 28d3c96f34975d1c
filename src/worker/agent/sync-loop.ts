/**
 * The worker's syncs with the control plane. The control plane always holds one sync open. The worker sends a second one when
 * it has something new to report.
 */
import {
  SYNCS_AT_ONCE,
  WORKER_PROTOCOL_VERSION,
  type Capacity,
  type DesiredRun,
  type StreamTicket,
  type SyncAnswer,
  type SyncRequest,
} from '../../contract/workers/worker-protocol.ts'
import { isPressureAtLeast, type WorkerDisk } from '../../domain/workers/disk-pressure.ts'
import { interruptibleSleep, NOTIFIED, waitAtMost } from '../../lib/clock.ts'
import { joinSignals } from '../../lib/join-signals.ts'
import type { VolumeKey } from '../volumes/volume-storage.ts'
import type { Agent, AgentState, ReportMemory } from './agent-state.ts'
import { applyRunChanges, markStopping } from './apply-run-changes.ts'
import { observeRuns, reconcileRuns, setDiscards, waitForDiscards } from './reconcile-runs.ts'
import { withoutPhases } from './start-reports.ts'
import type { StreamRequest } from './streams.ts'

/** How long after a failed sync the worker tries again. */
export const SYNC_RETRY_MS = 500
/**
 * How long the worker waits before it sends another sync, while the control plane holds one and there is nothing new to
 * report.
 */
const IDLE_MS = 15_000
/**
 * How often the worker sends a whole report, and not just a heartbeat, although nothing changed. A difference that
 * either side missed is corrected within this time.
 */
export const WHOLE_REPORT_EVERY_MS = 600_000

type Serve = (request: StreamRequest) => void

/** Syncs until the agent ends. Calls `serve` for each stream that an answer requests. */
export async function keepSyncing(agent: Agent, serve: Serve): Promise<void> {
  const { deps, state, signal } = agent
  while (!signal.aborted) {
    state.pause = new AbortController()
    if (state.inFlight.size === 0 || (state.hasNews && state.inFlight.size < SYNCS_AT_ONCE))
      await beginSync(agent, serve)
    else await interruptibleSleep(deps.clock, IDLE_MS, state.pause.signal, signal)
  }
}

/**
 * Observes the runs and volumes and sends a report of them, unless the latest report says the same and has no answer yet.
 * Resolves once they are observed, so that reports are numbered in the order of their observations.
 */
async function beginSync(agent: Agent, serve: Serve): Promise<void> {
  const { state } = agent
  state.hasNews = false
  try {
    const report = await makeReport(agent)
    if (report === null) return
    const overtaken = new AbortController()
    state.inFlight.set(report.request.seq, overtaken)
    void exchange(agent, { ...report, serve }, overtaken.signal) // it never rejects
  } catch (error) {
    await pauseAfter(agent, error)
  }
}

/**
 * Resolves with null if the latest report has the same content and is in flight. The control plane then learns nothing from
 * another one. A start causes such a report, because the driver notices the run that the start's end has just reported: it
 * was recorded while the control plane recorded that the run is running, and locked the worker's row.
 */
async function makeReport(agent: Agent): Promise<Report | null> {
  const { deps, diskGuard, state, volumes } = agent
  const disk = diskGuard.reported()
  const [observed, stored_sandboxes, ofVolumes] = await Promise.all([
    observeRuns(agent),
    deps.driver.listStored(),
    volumes.report(),
  ])
  const observed_runs = state.startReports.withoutRecorded(observed)
  const content = {
    protocol: WORKER_PROTOCOL_VERSION,
    worker_id: deps.worker_id,
    incarnation: deps.incarnation,
    known_desired_version: state.desiredVersion,
    capacity: deps.leaving?.aborted === true ? NO_CAPACITY : offeredCapacity(state.probe.capacity, disk),
    ...(disk === undefined ? {} : { disk }),
    driver: state.probe.report,
    observed_runs,
    stored_sandboxes,
    dialled_tickets: [...state.dialledTickets],
    ...ofVolumes,
  }
  const compared = JSON.stringify({ ...content, observed_runs: observed_runs.map(withoutPhases) })
  if (compared === state.reportMemory.content && state.inFlight.has(state.seq)) return null
  const seq = ++state.seq
  const sent = { content: compared, seq, nowMs: deps.clock.monotonicMs() }
  const request = { ...content, seq, known_generation: knownGeneration(state.reportMemory, sent) }
  return { request, knownRuns: state.desiredRuns ?? [] }
}

/** What a worker offers that takes no new runs. */
const NO_CAPACITY: Capacity = { vcpus: 0, memory_mib: 0, disk_mib: 0 }

/** The capacity to report: a worker whose disk became short since the last probe offers no disk. */
function offeredCapacity(capacity: Capacity, disk: WorkerDisk | undefined): Capacity {
  const isShort = disk !== undefined && isPressureAtLeast(disk.pressure, 'short')
  return isShort ? { ...capacity, disk_mib: 0 } : capacity
}

/**
 * Returns the `known_generation` of a report that is about to be sent, and updates `memory`. Null makes the control
 * plane read the whole report. Any other value says that the content is unchanged since that generation.
 */
export function knownGeneration(
  memory: ReportMemory,
  { content, seq, nowMs }: { readonly content: string; readonly seq: number; readonly nowMs: number },
): number | null {
  if (content !== memory.content) Object.assign(memory, { content, sinceSeq: seq, generation: null })
  const isDue = nowMs - memory.wholeAtMs >= WHOLE_REPORT_EVERY_MS
  if (memory.generation !== null && !isDue) return memory.generation
  memory.wholeAtMs = nowMs
  return null
}

/** Stores the generation from the answer to the report `seq`. An answer to a report with other content is ignored. */
export function noteGeneration(memory: ReportMemory, seq: number, generation: number | null): void {
  if (seq >= memory.sinceSeq) memory.generation = generation
}

/** A report, and the runs of the version that it says the worker knows. */
type Report = { readonly request: SyncRequest; readonly knownRuns: readonly DesiredRun[] }
type SentReport = Report & { readonly serve: Serve }

async function exchange(agent: Agent, sent: SentReport, overtaken: AbortSignal): Promise<void> {
  const { deps, fence, renewDeadline, state } = agent
  const { request } = sent
  using either = joinSignals(agent.signal, overtaken)
  const sentAtMs = renewDeadline.nowMs()
  const onRecorded = (): Promise<void> => {
    if (request.capacity === NO_CAPACITY) deps.onLeavingRecorded?.()
    return renewDeadline.extend(sentAtMs)
  }
  try {
    const answer = await deps.controlPlane.sync(request, either.signal, onRecorded)
    await renewDeadline.extend(sentAtMs)
    state.startReports.noteRecorded(request)
    if (request.seq > state.appliedSeq) await applyAnswer(agent, sent, answer)
    deps.onSynced?.(answer)
  } catch (error) {
    fence.noteFailure(error)
    if (request.seq > state.appliedSeq) {
      state.hasNews = true // what was new is still to be reported, and an earlier sync may be held for long
      await pauseAfter(agent, error)
    }
  } finally {
    state.inFlight.delete(request.seq)
    state.pause.abort(NOTIFIED)
  }
}

async function pauseAfter({ deps, signal }: Agent, error: unknown): Promise<void> {
  if (signal.aborted) return
  deps.log.warn({ error }, 'a sync with the control plane failed; will retry')
  await interruptibleSleep(deps.clock, SYNC_RETRY_MS, signal)
}

async function applyAnswer(agent: Agent, sent: SentReport, answer: SyncAnswer): Promise<void> {
  const { state, volumes } = agent
  const { request, serve } = sent
  state.appliedSeq = request.seq
  for (const [seq, overtaken] of state.inFlight)
    if (seq < request.seq) overtaken.abort(new Error('a later sync was answered'))
  const changed = applyRuns(state, sent, answer)
  noteGeneration(state.reportMemory, request.seq, answer.generation)
  const open = new Set(answer.streams.map(({ ticket }) => ticket))
  for (const ticket of request.dialled_tickets) if (!open.has(ticket)) state.dialledTickets.delete(ticket)
  for (const stream of answer.streams) dial(agent, stream, serve)
  setDiscards(agent, answer.discard_sandboxes)
  volumes.apply(request, answer)
  // To list a thousand runs again took 0.5 % of a core, with nothing else to do.
  const isQuiet = answer.desired_runs === null && !state.hasNews && state.seq === request.seq
  await reconcileRuns(agent, isQuiet ? request.observed_runs : null)
  // Until these deletions are done, every answer requests them again. Waiting keeps the worker from syncing in a tight loop.
  await Promise.all([
    removeVolumes(agent, answer.discard_volumes),
    waitForDiscards(agent, SYNC_RETRY_MS),
    giveSecrets(agent, changed),
  ])
}

/**
 * Applies the desired runs of an answer and returns them, unless they may be older than those that the worker has. Two server
 * processes may answer two reports at the same time, and the later report may get what was read earlier. Such an answer would
 * remove a new run, or start a stopped one again. So the runs of another process count only if their report was made after the
 * worker's runs were applied. The next report asks for what was left out.
 */
function applyRuns(state: AgentState, { request, knownRuns }: Report, answer: SyncAnswer): readonly DesiredRun[] {
  if (answer.desired_runs === null) return []
  const isInOrder = answer.answered_by !== undefined && answer.answered_by === state.desiredBy.answered_by
  if (!isInOrder && request.seq <= state.desiredBy.sentSeq) return []
  if (answer.changes_only !== undefined && state.desiredVersion === null) return [] // all runs are needed
  state.desiredRuns = applyRunChanges(knownRuns, answer, markStopping)
  state.laterRuns = new Set(answer.later_runs)
  state.desiredVersion = answer.desired_version
  state.desiredBy = { answered_by: answer.answered_by, sentSeq: state.seq }
  const desired = state.laterRuns.union(new Set(state.desiredRuns.map(({ run_id }) => run_id)))
  for (const run of state.destroyedRuns.keys()) if (!desired.has(run)) state.destroyedRuns.delete(run)
  return answer.desired_runs
}

function dial({ deps, state, signal }: Agent, { ticket, url, ...purpose }: StreamTicket, serve: Serve): void {
  if (state.dialledTickets.has(ticket)) return
  state.dialledTickets.add(ticket)
  serve({ purpose, connect: () => deps.controlPlane.dial({ ticket, url }, signal) })
}

/** Gives the driver the secrets of its runs. After a failure and a pause, the next answer contains them again. */
async function giveSecrets({ deps, state, signal }: Agent, runs: readonly DesiredRun[]): Promise<void> {
  const given = runs.map(async ({ run_id, secrets = null, interception = null }) => {
    if (secrets === null && interception === null) return
    await deps.driver.setSecrets?.(run_id, { secrets: secrets ?? [], interception })
  })
  const failed = (await Promise.allSettled(given)).find(({ status }) => status === 'rejected')
  if (failed?.status !== 'rejected') return
  deps.log.error({ error: failed.reason }, 'the secrets of a running sandbox could not be replaced; will retry')
  state.desiredVersion = null
  await interruptibleSleep(deps.clock, SYNC_RETRY_MS, signal)
}

/** Starts to delete volumes, and waits a limited time for the deletions. */
async function removeVolumes({ deps, steps, volumes, signal }: Agent, removed: readonly VolumeKey[]): Promise<void> {
  if (removed.length === 0) return
  const removals = removed.map(
    (volume) =>
      new Promise<void>((resolve) => {
        const work = (): Promise<void> => volumes.remove(volume).finally(resolve)
        steps.begin({ id: volume.volume_id, starting: null, work })
      }),
  )
  await waitAtMost(deps.clock, SYNC_RETRY_MS, Promise.all(removals), signal)
}
