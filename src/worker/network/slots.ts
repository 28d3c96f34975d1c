import type { Cidr } from '../../domain/network/cidr.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { debounce } from '../../lib/when-quiet.ts'
import { slotCount, UPLINK_SLOT, type Installation } from './installation.ts'
import { createSandboxes, removeSandboxes } from './namespaces.ts'

/** Gives out the slots of a pool; some have their namespace made ahead, which is most of the time that one takes. */
export type Slots = {
  /** A slot whose namespace is there and refused everything. Throws when the pool is used up. */
  take(): Promise<number>
  /** A slot without a namespace. Throws when the pool is used up. */
  reserve(): number
  /** Gives back a slot whose namespace is gone. */
  free(slot: number): void
  /** Makes namespaces until as many are ready as were wished, in the background; a failure is logged. */
  refill(): void
  /** Waits for what is being made and removes what is ready. */
  close(): Promise<void>
}

/** How many namespaces are made in one go: few, so that the first is soon ready. */
const BATCH = 4

/**
 * New ones are made when no start has taken one for a moment: the processes that make them would take the processor
 * from the start that took the last one (its mounts and network took 45 ms beside them, 25 without; two cores, 2026-11).
 * Under a stream of starts they are made all the same.
 */
const QUIET_MS = 250
const LATEST_MS = 1_000

export function makeSlots(options: {
  readonly names: Installation
  readonly pool: Cidr
  readonly taken: ReadonlySet<number>
  readonly readyAhead: number
  readonly clock: Clock
  readonly log: Log
  /** Opens devices of the host that came since. */
  readonly openForwarding: () => Promise<void>
}): Slots {
  const { names, pool, readyAhead, log } = options
  const count = slotCount(pool)
  const taken = new Set([UPLINK_SLOT, ...options.taken])
  const ready: number[] = []
  let cursor = UPLINK_SLOT
  let filling: Promise<void> | null = null
  let isClosing = false

  function reserve(): number {
    for (let step = 1; step <= count; step++) {
      const slot = (cursor + step) % count
      if (taken.has(slot)) continue
      // onward, not back to the first free one: a slot rests as long as possible before its next user
      cursor = slot
      taken.add(slot)
      return slot
    }
    throw new Error(`the sandbox pool is used up: ${String(count - 1)} networks are there`)
  }

  async function make(slots: readonly number[]): Promise<void> {
    try {
      await createSandboxes(names, pool, slots)
    } catch (error) {
      await removeSandboxes(names, slots)
      for (const slot of slots) taken.delete(slot)
      throw error
    }
  }

  async function fill(): Promise<void> {
    await options.openForwarding()
    while (!isClosing && ready.length < readyAhead) {
      const batch = Array.from({ length: Math.min(BATCH, readyAhead - ready.length) }, reserve)
      await make(batch)
      ready.push(...batch)
    }
  }

  function refill(): void {
    if (filling !== null || isClosing || ready.length >= readyAhead) return
    filling = fill()
      .catch((error: unknown) => {
        log.warn({ error }, 'sandbox networks could not be made ahead; each start makes its own')
      })
      .finally(() => {
        filling = null
      })
  }

  const later = debounce({ clock: options.clock, delayMs: QUIET_MS, maxWaitMs: LATEST_MS, work: refill })
  return {
    take: async () => {
      const prepared = ready.shift()
      later.schedule()
      if (prepared !== undefined) return prepared
      const slot = reserve()
      await make([slot])
      return slot
    },
    reserve,
    free: (slot) => {
      taken.delete(slot)
    },
    refill,
    close: async () => {
      isClosing = true
      later.close()
      if (filling !== null) await filling
      await removeSandboxes(names, ready.splice(0))
    },
  }
}
