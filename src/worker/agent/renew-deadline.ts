/**
 * The time by which this worker must get an answer from its control plane, or destroy its runs. It comes before the end of the
 * worker's lease, when the control plane declares the runs lost. Therefore no run exists twice. Time counts from the machine's
 * start: it goes on while a process is stopped and while the machine sleeps.
 */
import { readFileSync } from 'node:fs'
import { RENEW_DEADLINE_MS } from '../../domain/workers/lease.ts'
import type { Clock } from '../../lib/clock.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'
import { readBootId } from '../processes/process-identity.ts'
import { makeKeyedMutex } from '../../lib/keyed-mutex.ts'

export type RenewDeadline = {
  /** The time by the deadline's clock, in milliseconds. */
  nowMs(): number
  /** Records the answer to a message that was sent at `sentAtMs`. Answers to earlier messages change nothing. */
  extend(sentAtMs: number): Promise<void>
  hasPassed(): boolean
}

/** Makes a deadline that only this process knows. It counts from now. */
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

/** The content of the deadline's file. The watchdog and the launcher read it, too. */
type Written = { readonly boot: string; readonly over_at_ms: number }

/**
 * Opens a deadline that is stored in a file. It outlives this process: a later incarnation of the worker has the same deadline,
 * and the watchdog acts when it has passed. Without a file, or with one of an earlier boot, it has passed.
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

/** CLOCK_BOOTTIME (proc_uptime(5)), in steps of 10 ms. */
function sinceBootMs(): number {
  return Math.floor(Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1000)
}
