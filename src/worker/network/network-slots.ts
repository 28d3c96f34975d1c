import type { Cidr } from '../../domain/cidr.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { debounce } from '../../lib/debounce.ts'
import { slotCount, UPLINK_SLOT, type NetworkNames } from './network-names.ts'
import { createSandboxNamespaces, removeSandboxNamespaces } from './namespaces.ts'

/** Gives out the slots of the address pool; some have their namespace made ahead, which is most of the time that one takes. */
type NetworkSlots = {
  /** A slot whose namespace is there and refused everything. Throws when the address pool is used up. */
  allocateReady(): Promise<number>
  /** A slot without a namespace. Throws when the address pool is used up. */
  allocate(): number
  /** Gives back a slot whose namespace is gone. */
  release(slot: number): void
  /** Makes namespaces until as many are ready as were wished, in the background; a failure is logged. */
  prewarm(): void
  /** Waits for what is being made and removes what is ready. */
  close(): Promise<void>
}

/** How many namespaces are made in one go: few, so that the first is soon ready. */
const PREWARM_BATCH = 4

/**
 * New ones are made when no start has taken one for a moment: the processes that make them would take the processor
 * from the start that took the last one (its mounts and network took 45 ms beside them, 25 without; two cores, 2026-11).
 * Under a stream of starts they are made all the same.
 */
const PREWARM_QUIET_MS = 250
const PREWARM_LATEST_MS = 1_000

export function makeNetworkSlots(options: {
  readonly names: NetworkNames
  readonly addressPool: Cidr
  readonly taken: ReadonlySet<number>
  readonly prewarmCount: number
  readonly clock: Clock
  readonly log: Log
  /** Opens devices of the host that came since. */
  readonly ensureHostForwarding: () => Promise<void>
}): NetworkSlots {
  const { names, addressPool, prewarmCount, log } = options
  const count = slotCount(addressPool)
  const taken = new Set([UPLINK_SLOT, ...options.taken])
  const ready: number[] = []
  let cursor = UPLINK_SLOT
  let filling: Promise<void> | null = null
  let isClosing = false

  function allocate(): number {
    for (let step = 1; step <= count; step++) {
      const slot = (cursor + step) % count
      if (taken.has(slot)) continue
      // onward, not back to the first free one: a slot rests as long as possible before its next user
      cursor = slot
      taken.add(slot)
      return slot
    }
    throw new Error(`the address pool of the sandboxes is used up: ${String(count - 1)} networks are there`)
  }

  async function createNamespaces(slots: readonly number[]): Promise<void> {
    try {
      await createSandboxNamespaces(names, addressPool, slots)
    } catch (error) {
      await removeSandboxNamespaces(names, slots)
      for (const slot of slots) taken.delete(slot)
      throw error
    }
  }

  async function prewarmAll(): Promise<void> {
    await options.ensureHostForwarding()
    while (!isClosing && ready.length < prewarmCount) {
      const batch = Array.from({ length: Math.min(PREWARM_BATCH, prewarmCount - ready.length) }, allocate)
      await createNamespaces(batch)
      ready.push(...batch)
    }
  }

  function prewarm(): void {
    if (filling !== null || isClosing || ready.length >= prewarmCount) return
    filling = prewarmAll()
      .catch((error: unknown) => {
        log.warn({ error }, 'sandbox networks could not be made ahead; each start makes its own')
      })
      .finally(() => {
        filling = null
      })
  }

  const later = debounce({
    clock: options.clock,
    delayMs: PREWARM_QUIET_MS,
    maxWaitMs: PREWARM_LATEST_MS,
    work: prewarm,
  })
  return {
    allocateReady: async () => {
      const prepared = ready.shift()
      later.schedule()
      if (prepared !== undefined) return prepared
      const slot = allocate()
      await createNamespaces([slot])
      return slot
    },
    allocate,
    release: (slot) => {
      taken.delete(slot)
    },
    prewarm,
    close: async () => {
      isClosing = true
      later.close()
      if (filling !== null) await filling
      await removeSandboxNamespaces(names, ready.splice(0))
    },
  }
}
