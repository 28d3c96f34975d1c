import type { OrgId } from '../../domain/ids.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as eventWindows from '../../store/events/event-windows.ts'
import type { BaseDeps } from '../deps.ts'

const LOOK_MS = 20
const WAIT_MAX_MS = 5_000

/** Waits until all transactions that run now have ended, at most 5 s, and resolves with the horizon then. */
export async function untilSettled(
  { db, clock }: Pick<BaseDeps, 'db' | 'clock'>,
  org: OrgId,
  signal: AbortSignal,
): Promise<bigint> {
  const { end } = await db.asOrg(org, (q) => eventWindows.snapshot(q))
  const fromMs = clock.monotonicMs()
  for (;;) {
    const { xid } = await db.asOrg(org, (q) => eventWindows.horizon(q))
    if (xid >= end || signal.aborted || clock.monotonicMs() - fromMs > WAIT_MAX_MS) return xid
    await interruptibleSleep(clock, LOOK_MS, signal)
  }
}
