import type { Duplex } from 'node:stream'
import type { LogQuery } from '../../contract/streams/log-protocol.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { OrgId, SandboxId } from '../../domain/ids.ts'
import { isTerminal } from '../../domain/sandboxes/lifecycle.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { BaseDeps } from '../deps.ts'
import { sandboxTopic } from '../topics.ts'
import type { WorkerStreams } from './open-worker-stream.ts'
import { readLogBatches, type LogBatch } from './log-batches.ts'
import { getSummary, type SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { invalidStateTransition } from '../sandboxes/start-sandbox.ts'
import { acquireStreamPermit, openPermittedStream, type StreamPermit, type StreamPermitDeps } from './stream-permit.ts'
import { problemOfCallerEnd } from './watch-caller.ts'

export type { LogBatch } from './log-batches.ts'

type LogDeps = Pick<BaseDeps, 'db' | 'clock' | 'log' | 'notifications'> &
  SandboxReader &
  WorkerStreams &
  StreamPermitDeps

/**
 * A request to read a sandbox's log. `followMs`: how long to wait for new lines. Null: read the existing lines and end.
 */
export type LogRequest = {
  readonly id: SandboxId
  readonly query: Omit<LogQuery, 'follows'>
  readonly followMs: number | null
  /** Aborted when the client disconnects. Abort it if you stop reading before the end. */
  readonly signal: AbortSignal
}

/**
 * Reads the log of a sandbox from the worker of its latest run. A last batch (`isLast`) means that the log is complete:
 * a followed run is over, or all existing lines were read. The log ends without a last batch when the time is over, the
 * caller loses its rights, or the worker disconnects. Throws `sandbox_not_found`, `rate_limited`, and `unavailable`
 * when the worker does not answer. Throws `invalid_state_transition` for following a sandbox that has not been placed
 * yet.
 */
export async function readLogs(deps: LogDeps, caller: Caller, request: LogRequest): Promise<AsyncIterable<LogBatch>> {
  const { status } = await getSummary(deps, caller, { id: request.id })
  const run = await lastRunOf(deps, caller.org_id, request.id)
  const isWaiting = status === 'created' || (status === 'starting' && run?.is_open !== true)
  if (request.followMs !== null && isWaiting)
    throw invalidStateTransition(status, ['running', 'stopping', 'stopped', 'failed'])
  if (run === null) return emptyLog()
  const follows = request.followMs !== null && !isTerminal(status)
  const permit = acquireStreamPermit(deps, caller, {
    limitMs: follows ? request.followMs : null,
    signal: request.signal,
  })
  const log: FollowedLog = { org_id: caller.org_id, id: request.id, run, query: { ...request.query, follows }, permit }
  try {
    return forwardLog(deps, log, await openLog(deps, log))
  } catch (error) {
    permit.release()
    throw permit.signal.aborted ? problemOfCallerEnd(permit.signal.reason) : error
  }
}

type FollowedLog = {
  readonly org_id: OrgId
  readonly id: SandboxId
  readonly run: runs.LastRun
  readonly query: LogQuery
  readonly permit: StreamPermit
}

async function* emptyLog(): AsyncGenerator<LogBatch> {
  yield await Promise.resolve({ entries: [], isLast: true })
}

/**
 * Forwards the log that the worker sends. A worker may report the end of the log too early: before it begins this run,
 * or just after a restart. While the run is open, the worker is therefore asked again, from the last line on.
 */
async function* forwardLog(deps: LogDeps, asked: FollowedLog, first: Duplex): AsyncGenerator<LogBatch> {
  let log = asked
  let stream = first
  try {
    for (;;) {
      let hasEnded = false
      for await (const { entries, isLast } of readLogBatches(stream)) {
        const newest = entries.at(-1)
        if (newest !== undefined) {
          log = { ...log, query: { ...log.query, after: newest.position, tail: null } }
          yield { entries, isLast: false }
        }
        hasEnded = isLast
      }
      if (!hasEnded) return // the worker disconnected
      const run = await nextRunOf(deps, log)
      if (run === null) {
        yield { entries: [], isLast: true }
        return
      }
      log = { ...log, run }
      stream = await openLog(deps, log)
    }
  } catch (error) {
    if (!log.permit.signal.aborted) deps.log.warn({ error, sandbox_id: log.id }, 'a log stream failed')
  } finally {
    log.permit.release()
  }
}

/** Opens the worker's log stream. The stream is destroyed when the permit's signal aborts. */
function openLog(deps: LogDeps, { id, run, query, permit }: FollowedLog): Promise<Duplex> {
  const target = { worker_id: run.worker_id, purpose: { kind: 'logs', sandbox_id: id, query } } as const
  return openPermittedStream(deps, target, permit)
}

/**
 * Whether to ask the worker again after it reported the end of the log: the run to ask about, or null if the report is
 * final. Once a run is over, the worker is asked one last time, because its earlier report may have been too early.
 */
async function nextRunOf(deps: LogDeps, log: FollowedLog): Promise<runs.LastRun | null> {
  const { run, query } = log
  const isBeyond = query.until !== null && deps.clock.now() >= new Date(query.until)
  if (!query.follows || !run.is_open || isBeyond) return null
  const now = await whenEnded(deps, log)
  return now?.run_id === run.run_id ? now : { ...run, is_open: false }
}

/** How long to wait for a worker's report that the run ended, in milliseconds, before its log is asked for again. */
const END_REPORT_WAIT_MS = 1_000

/** Resolves with the sandbox's latest run once it ended, another run was opened, or the wait is over. */
async function whenEnded(deps: LogDeps, { org_id, id, run, permit }: FollowedLog): Promise<runs.LastRun | null> {
  const moved = new AbortController()
  const unsubscribe = deps.notifications.subscribe(sandboxTopic(id), () => {
    moved.abort()
  })
  try {
    const before = await lastRunOf(deps, org_id, id)
    if (before?.run_id !== run.run_id || !before.is_open) return before
    await interruptibleSleep(deps.clock, END_REPORT_WAIT_MS, moved.signal, permit.signal)
    return await lastRunOf(deps, org_id, id)
  } finally {
    unsubscribe()
  }
}

function lastRunOf(deps: LogDeps, org: OrgId, id: SandboxId): Promise<runs.LastRun | null> {
  return deps.db.asOrg(org, (q) => runs.lastPlacedRunOf(q, id))
}
