import type { OrgId } from '../../domain/ids.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import * as eventWindows from '../../store/events/event-windows.ts'
import type { BaseDeps } from '../deps.ts'

const LOOK_MS = 20

/** Waits until all transactions that run now have ended, or the signal aborts, and resolves with the horizon then. */
export async function untilSettled(
  { db, clock }: Pick<BaseDeps, 'db' | 'clock'>,
  org: OrgId,
  signal: AbortSignal,
): Promise<bigint> {
  const { end } = await db.asOrg(org, (q) => eventWindows.snapshot(q))
  for (;;) {
    const { xid } = await db.asOrg(org, (q) => eventWindows.horizon(q))
    if (xid >= end || signal.aborted) return xid
    await interruptibleSleep(clock, LOOK_MS, signal)
  }
}
