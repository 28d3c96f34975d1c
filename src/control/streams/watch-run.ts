import type { SandboxSummary } from '../../domain/sandboxes/sandbox.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import type { BaseDeps } from '../deps.ts'
import type { SandboxReader } from '../sandboxes/read-sandboxes.ts'
import { sandboxTopic } from '../topics.ts'

/** Why a run ended, for the work that was in progress on it. */
export type RunEndReason = 'sandbox_stopped' | 'sandbox_failed' | 'sandbox_deleted'

/** The abort reason of the signal of a `RunWatch`. */
export class RunEnded extends Error {
  readonly why: RunEndReason
  constructor(why: RunEndReason) {
    super(why)
    this.why = why
  }
}

/** A watch on a run. It lasts until `stop` is called. */
export type RunWatch = {
  /** Aborted with a `RunEnded` once the run is over or its sandbox is deleted. */
  readonly signal: AbortSignal
  readonly stop: () => void
}

type WatchDeps = Pick<BaseDeps, 'clock' | 'notifications' | 'log'> & SandboxReader

/**
 * How often a sandbox is checked without a notification, in milliseconds. A lost notification costs at most this time.
 */
const CHECK_EVERY_MS = 30_000

/** Watches the current run of a running sandbox. A stopping sandbox counts as running. Never throws. */
export function watchRun(deps: WatchDeps, sandbox: SandboxSummary): RunWatch {
  const ended = new AbortController()
  const stopped = new AbortController()
  void follow(deps, sandbox, { ended, stopped: stopped.signal }) // it never rejects: a failed check is logged and repeated
  return {
    signal: ended.signal,
    stop: () => {
      stopped.abort()
    },
  }
}

async function follow(
  deps: WatchDeps,
  sandbox: SandboxSummary,
  { ended, stopped }: { readonly ended: AbortController; readonly stopped: AbortSignal },
): Promise<void> {
  let notified = new AbortController()
  const unsubscribe = deps.notifications.subscribe(sandboxTopic(sandbox.id), () => {
    notified.abort()
  })
  try {
    while (!stopped.aborted) {
      notified = new AbortController()
      const end = await check(deps, sandbox)
      if (end !== null) {
        ended.abort(new RunEnded(end))
        return
      }
      await interruptibleSleep(deps.clock, CHECK_EVERY_MS, notified.signal, stopped)
    }
  } finally {
    unsubscribe()
  }
}

async function check(deps: WatchDeps, then: SandboxSummary): Promise<RunEndReason | null> {
  try {
    return endOf(then, await deps.readSummary(then))
  } catch (error) {
    deps.log.warn({ error, sandbox_id: then.id }, 'could not check the sandbox of an open channel; will retry')
    return null
  }
}

function endOf(then: SandboxSummary, now: SandboxSummary | null): RunEndReason | null {
  if (now === null) return 'sandbox_deleted'
  if (now.status === 'failed') return 'sandbox_failed'
  const isRunning = now.status === 'running' || now.status === 'stopping'
  return isRunning && now.started_at?.getTime() === then.started_at?.getTime() ? null : 'sandbox_stopped'
}
