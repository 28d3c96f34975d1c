/**
 * The renew deadline: the worker destroys its runs if the control plane has not answered by then. At the end of the
 * worker's lease, the control plane declares the runs lost and may start their sandboxes elsewhere. The deadline is
 * earlier, so no sandbox runs on two workers. The deadline's clock counts from the machine's boot and continues while a
 * process is stopped and while the machine sleeps.
 */
import { RENEW_DEADLINE_MS } from '../../domain/workers/lease.ts'
import { sinceBootMs, type Clock } from '../../lib/clock.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'
import { readBootId } from '../processes/process-identity.ts'
import { makeKeyedMutex } from '../../lib/turns/keyed-mutex.ts'

export type RenewDeadline = {
  /** The time on the deadline's clock, in milliseconds. */
  nowMs(): number
  /**
   * Extends the deadline to `RENEW_DEADLINE_MS` after `sentAtMs`, when a message was sent that the control plane has
   * answered. Never shortens the deadline.
   */
  extend(sentAtMs: number): Promise<void>
  hasPassed(): boolean
}

/** Creates a deadline that exists only in this process and counts from now. */
export function makeRenewDeadline(clock: Pick<Clock, 'monotonicMs'>): RenewDeadline {
  let renewedAtMs = clock.monotonicMs()
  return {
    nowMs: () => clock.monotonicMs(),
    extend(sentAtMs) {
      renewedAtMs = Math.max(renewedAtMs, sentAtMs)
      return Promise.resolve()
    },
    hasPassed: () => clock.monotonicMs() - renewedAtMs >= RENEW_DEADLINE_MS,
  }
}

/** The content of a deadline's file. The watchdog and the launcher also read that file. */
type Written = { readonly boot: string; readonly over_at_ms: number }

/**
 * Opens a deadline that is stored in a file. The worker's next process continues the same deadline, and the watchdog
 * kills the sandboxes once it has passed. If the file is missing or from an earlier boot of the machine, the deadline
 * counts as passed.
 */
export async function openRenewDeadline(path: string): Promise<RenewDeadline> {
  const boot = await readBootId()
  const found = await readJson<Written>(path)
  let deadlineMs = found?.boot === boot ? found.over_at_ms : 0
  const mutex = makeKeyedMutex()
  if (deadlineMs === 0) await writeJsonAtomically(path, { boot, over_at_ms: 0 } satisfies Written)
  return {
    nowMs: sinceBootMs,
    async extend(sentAtMs) {
      await mutex.run(path, async () => {
        const wantedMs = sentAtMs + RENEW_DEADLINE_MS
        if (wantedMs <= deadlineMs) return
        await writeJsonAtomically(path, { boot, over_at_ms: wantedMs } satisfies Written)
        deadlineMs = wantedMs
      })
    },
    hasPassed: () => sinceBootMs() >= deadlineMs,
  }
}
