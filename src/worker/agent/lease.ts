/**
 * How long this worker may hold runs without an answer from its control plane. The lease ends before the control plane
 * declares the runs lost, so that none of them runs twice. Time counts from the machine's start: it goes on while a process
 * is stopped and while the machine sleeps.
 */
import { readFileSync } from 'node:fs'
import { SELF_FENCE_MS } from '../../domain/workers/lease.ts'
import type { Clock } from '../../lib/clock.ts'
import { readJson, writeJsonAtomically } from '../../lib/files.ts'
import { readBootId } from '../processes/process-identity.ts'
import { makeKeyedMutex } from '../../lib/keyed-mutex.ts'

export type Lease = {
  /** The time by the lease's clock, in milliseconds. */
  nowMs(): number
  /** Notes that a message that was sent at `sentAtMs` was answered. Overtaken answers change nothing. */
  renew(sentAtMs: number): Promise<void>
  isOver(): boolean
}

/** Makes a lease that only this process knows. It begins now. */
export function makeLease(clock: Pick<Clock, 'monotonicMs'>): Lease {
  let renewedAtMs = clock.monotonicMs()
  return {
    nowMs: () => clock.monotonicMs(),
    renew(sentAtMs) {
      renewedAtMs = Math.max(renewedAtMs, sentAtMs)
      return Promise.resolve()
    },
    isOver: () => clock.monotonicMs() - renewedAtMs >= SELF_FENCE_MS,
  }
}

/** The file of a lease. The watchdog and the launcher read it, too. */
type Written = { readonly boot: string; readonly over_at_ms: number }

/**
 * Opens a lease in a file. It outlives this process: a later incarnation of the worker has what is left of it, and the
 * watchdog acts when it is over. Without a file, or with one of an earlier boot, it is over.
 */
export async function openLease(path: string): Promise<Lease> {
  const boot = await readBootId()
  const found = await readJson<Written>(path)
  let overAtMs = found?.boot === boot ? found.over_at_ms : 0
  const mutex = makeKeyedMutex()
  if (overAtMs === 0) await writeJsonAtomically(path, { boot, over_at_ms: 0 } satisfies Written)
  return {
    nowMs: sinceBootMs,
    async renew(sentAtMs) {
      await mutex.run(path, async () => {
        const wantedMs = sentAtMs + SELF_FENCE_MS
        if (wantedMs <= overAtMs) return
        await writeJsonAtomically(path, { boot, over_at_ms: wantedMs } satisfies Written)
        overAtMs = wantedMs
      })
    },
    isOver: () => sinceBootMs() >= overAtMs,
  }
}

/** CLOCK_BOOTTIME (proc_uptime(5)), in steps of 10 ms. */
function sinceBootMs(): number {
  return Math.floor(Number(readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1000)
}
