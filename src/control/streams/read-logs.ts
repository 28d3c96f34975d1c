import type { Duplex } from 'node:stream'
import type { LogQuery } from '../../contract/streams/log-protocol.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import type { OrgId, SandboxId } from '../../domain/ids.ts'
import { isTerminal } from '../../domain/sandboxes/lifecycle.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import type { ControlDeps } from '../deps.ts'
import { openWorkerStream } from './open-worker-stream.ts'
import { readLogBatches, type LogBatch } from './log-batches.ts'
import { acquireLogStream, type LogStreamPermit } from './log-stream-permit.ts'
import { getSandbox } from '../sandboxes/read-sandboxes.ts'
import { invalidStateTransition } from '../sandboxes/start-sandbox.ts'
import { problemOfCallerEnd } from './watch-caller.ts'

export type { LogBatch } from './log-batches.ts'

type LogDeps = Pick<
  ControlDeps,
  'db' | 'clock' | 'log' | 'notifications' | 'readSandbox' | 'openStream' | 'logPlaces' | 'callerWatches'
>

/** What of a sandbox's log is wanted. `followMs`: how long to wait for what is still to come; null: not at all. */
export type LogRequest = {
  readonly id: SandboxId
  readonly query: Omit<LogQuery, 'follows'>
  readonly followMs: number | null
  /** Aborted when the reader leaves; whoever does not read to the end aborts it. */
  readonly signal: AbortSignal
}

/**
 * Reads the log of a sandbox from the worker of its last run. What comes ends with a batch that is the last one: the run
 * that was followed is over, or, without following, that is all there is; or else without one, when the time is over, the
 * caller's key ends, or the worker is gone. Throws `sandbox_not_found`; `invalid_state_transition` for following a
 * sandbox without a run on a worker that may still get one; `rate_limited`, and `unavailable` when the worker does not
 * answer.
 */
export async function readLogs(deps: LogDeps, caller: Caller, ask: LogRequest): Promise<AsyncIterable<LogBatch>> {
  const { status } = await getSandbox(deps, caller, { id: ask.id })
  const run = await lastRunOf(deps, caller.org_id, ask.id)
  const isWaiting = status === 'created' || (status === 'starting' && run?.is_open !== true)
  if (ask.followMs !== null && isWaiting)
    throw invalidStateTransition(status, ['running', 'stopping', 'stopped', 'failed'])
  if (run === null) return nothing()
  const follows = ask.followMs !== null && !isTerminal(status)
  const lease = acquireLogStream(deps, caller, { limitMs: follows ? ask.followMs : null, signal: ask.signal })
  const log: FollowedLog = { org_id: caller.org_id, id: ask.id, run, query: { ...ask.query, follows }, lease }
  try {
    return forwardLog(deps, log, await openLog(deps, log))
  } catch (error) {
    lease.release()
    throw lease.signal.aborted ? problemOfCallerEnd(lease.signal.reason) : error
  }
}

type FollowedLog = {
  readonly org_id: OrgId
  readonly id: SandboxId
  readonly run: runs.LastRun
  readonly query: LogQuery
  readonly lease: LogStreamPermit
}

async function* nothing(): AsyncGenerator<LogBatch> {
  yield await Promise.resolve({ entries: [], isLast: true })
}

/**
 * Gives on what the worker sends. A worker that says that no run is left may not have begun this one yet, or may have been
 * restarted just now: while the run is open it is asked again, from where it ended.
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
      if (!hasEnded) return // the worker is gone
      const run = await nextRunOf(deps, log)
      if (run === null) {
        yield { entries: [], isLast: true }
        return
      }
      log = { ...log, run }
      stream = await openLog(deps, log)
    }
  } catch (error) {
    if (!log.lease.signal.aborted) deps.log.warn({ err: error, sandbox_id: log.id }, 'a log stream broke off')
  } finally {
    log.lease.release()
  }
}

/** Opens the worker's side; it ends with the lease. */
async function openLog(deps: LogDeps, { id, run, query, lease }: FollowedLog): Promise<Duplex> {
  const target = { worker_id: run.worker_id, asked: { kind: 'logs', sandbox_id: id, query } } as const
  const stream = await openWorkerStream(deps, target, { signal: lease.signal, words: WORDS })
  const hangUp = (): void => {
    stream.destroy()
  }
  stream.on('error', hangUp) // whoever reads it hears of it; before and after nobody needs to
  lease.signal.addEventListener('abort', hangUp, { once: true })
  stream.once('close', () => {
    lease.signal.removeEventListener('abort', hangUp)
  })
  if (lease.signal.aborted) hangUp()
  return stream
}

/**
 * What to ask again when a worker says that no run is left, or null when that is the end. Once a run is over the worker is
 * asked a last time: what it said before may have been said too early.
 */
async function nextRunOf(deps: LogDeps, log: FollowedLog): Promise<runs.LastRun | null> {
  const { run, query } = log
  const isBeyond = query.until !== null && deps.clock.now() >= new Date(query.until)
  if (!query.follows || !run.is_open || isBeyond) return null
  const now = await whenEnded(deps, log)
  return now?.run_id === run.run_id ? now : { ...run, is_open: false }
}

/** How long a worker is waited for to report the end that its log tells of, before it is asked again. */
const END_REPORT_WAIT_MS = 1_000

/** The sandbox's last run, once it is not the open one any more or the wait is over. */
async function whenEnded(deps: LogDeps, { org_id, id, run, lease }: FollowedLog): Promise<runs.LastRun | null> {
  const moved = new AbortController()
  const unsubscribe = deps.notifications.subscribe(`sandbox:${id}`, () => {
    moved.abort()
  })
  try {
    const before = await lastRunOf(deps, org_id, id)
    if (before?.run_id !== run.run_id || !before.is_open) return before
    await interruptibleSleep(deps.clock, END_REPORT_WAIT_MS, AbortSignal.any([moved.signal, lease.signal]))
    return await lastRunOf(deps, org_id, id)
  } finally {
    unsubscribe()
  }
}

function lastRunOf(deps: LogDeps, org: OrgId, id: SandboxId): Promise<runs.LastRun | null> {
  return deps.db.asOrg(org, (q) => runs.lastPlacedRunOf(q, id))
}

const WORDS = { late: 'the worker of this sandbox did not answer', full: 'too many streams are being opened' } as const
