import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import type { ControlDeps } from '../deps.ts'

/** Why what was done in a run of a sandbox can't go on. */
export type RunEndReason = 'sandbox_stopped' | 'sandbox_failed' | 'sandbox_deleted'

/** The reason of the signal of a `RunWatch`. */
export class RunEnded extends Error {
  readonly why: RunEndReason
  constructor(why: RunEndReason) {
    super(why)
    this.why = why
  }
}

/** A run that is watched until `stop`. */
export type RunWatch = {
  /** Aborted, with a `RunEnded`, once the run is over or its sandbox deleted. */
  readonly signal: AbortSignal
  readonly stop: () => void
}

type WatchDeps = Pick<ControlDeps, 'clock' | 'notifications' | 'log' | 'readSandbox'>

/** How often a sandbox is looked at without being woken, in milliseconds: what a lost wake-up costs. */
const CHECK_EVERY_MS = 30_000

/** Watches the run that a running sandbox has now. A sandbox that is stopping still runs. Never throws. */
export function watchRun(deps: WatchDeps, sandbox: Sandbox): RunWatch {
  const ended = new AbortController()
  const stopped = new AbortController()
  void follow(deps, sandbox, { ended, stopped: stopped.signal }) // it never rejects: a failed look is reported and repeated
  return {
    signal: ended.signal,
    stop: () => {
      stopped.abort()
    },
  }
}

async function follow(
  deps: WatchDeps,
  sandbox: Sandbox,
  { ended, stopped }: { readonly ended: AbortController; readonly stopped: AbortSignal },
): Promise<void> {
  let woken = new AbortController()
  const unsubscribe = deps.notifications.subscribe(`sandbox:${sandbox.id}`, () => {
    woken.abort()
  })
  try {
    while (!stopped.aborted) {
      woken = new AbortController()
      const end = await look(deps, sandbox)
      if (end !== null) {
        ended.abort(new RunEnded(end))
        return
      }
      await interruptibleSleep(deps.clock, CHECK_EVERY_MS, AbortSignal.any([woken.signal, stopped]))
    }
  } finally {
    unsubscribe()
  }
}

async function look(deps: WatchDeps, then: Sandbox): Promise<RunEndReason | null> {
  try {
    return endOf(then, await deps.readSandbox(then))
  } catch (error) {
    deps.log.warn({ err: error, sandbox_id: then.id }, 'a sandbox with an open channel could not be looked at')
    return null
  }
}

function endOf(then: Sandbox, now: Sandbox | null): RunEndReason | null {
  if (now === null) return 'sandbox_deleted'
  if (now.status === 'failed') return 'sandbox_failed'
  const isRunning = now.status === 'running' || now.status === 'stopping'
  return isRunning && now.started_at?.getTime() === then.started_at?.getTime() ? null : 'sandbox_stopped'
}
