/**
 * A server keeps the time that it started with, whatever happens to the machine's clock (`lib/steady-time.ts`). Its next
 * process starts with the machine's clock as it is then. If that clock was set meanwhile, the new process moves the
 * instants of everything that is not over, so that nothing has lasted for longer than it has.
 */
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { JUMP_MS } from '../../lib/steady-time.ts'
import type { Database } from '../../store/postgres/database.ts'
import * as machineClocks from '../../store/workers/machine-clocks.ts'
import * as replicas from '../../store/workers/replicas.ts'
import { REPLICA_GONE_MS } from './replicas.ts'

export type MachineClockDeps = {
  readonly db: Database
  readonly clock: Pick<Clock, 'now'>
  readonly log: Log
  readonly machine: {
    readonly bootId: string
    /** The time since the machine's boot, in milliseconds. */
    readonly sinceBootMs: () => number
  }
}

/** The maximum number of server processes that are read. */
const REPLICAS_LIMIT = 64

/**
 * Call this before anything else uses the database. Moves nothing while another server process lives, because instants
 * are then written by its clock too.
 */
export async function adoptMachineClock({ db, clock, log, machine }: MachineClockDeps): Promise<void> {
  const aheadMs = await db.transaction('system', async (tx) => {
    const sinceBoot = machine.sinceBootMs()
    const bootedAt = new Date(clock.now().getTime() - sinceBoot)
    const recordedAt = await machineClocks.findBoot(tx, machine.bootId)
    await machineClocks.recordBoot(tx, machine.bootId, bootedAt)
    const byMs = recordedAt === null ? 0 : bootedAt.getTime() - recordedAt.getTime()
    if (recordedAt === null || Math.abs(byMs) <= JUMP_MS) return 0
    const beforeMs = recordedAt.getTime() + sinceBoot
    const others = await replicas.list(tx, REPLICAS_LIMIT)
    if (others.some(({ seen_at }) => Math.abs(beforeMs - seen_at.getTime()) < REPLICA_GONE_MS)) return 0
    await machineClocks.shiftOpenInstants(tx, byMs)
    return byMs
  })
  if (aheadMs !== 0)
    log.warn(
      { ahead_ms: aheadMs },
      "the machine's clock was set since the last start; running sandboxes keep their times",
    )
}

/** Records the clock again, because it follows small corrections of the machine's clock. */
export async function recordMachineClock({ db, clock, machine }: Omit<MachineClockDeps, 'log'>): Promise<void> {
  const bootedAt = new Date(clock.now().getTime() - machine.sinceBootMs())
  await db.asSystem((q) => machineClocks.recordBoot(q, machine.bootId, bootedAt))
}
