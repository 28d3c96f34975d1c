import type { Cidr } from '../../domain/cidr.ts'
import type { Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { debounce } from '../../lib/turns/debounce.ts'
import { slotCount, UPLINK_SLOT, type NetworkNames } from './network-names.ts'
import { createSandboxNamespaces, removeSandboxNamespaces } from './namespaces.ts'

/**
 * Allocates slots of the address pool. Creates some namespaces before they are needed, because creating a namespace
 * takes most of the time of an allocation.
 */
type NetworkSlots = {
  /**
   * Allocates a slot whose namespace exists. The router drops the slot's traffic until a policy is attached. Throws
   * when the address pool is exhausted.
   */
  allocateReady(): Promise<number>
  /** Allocates a slot without a namespace. Throws when the address pool is exhausted. */
  allocate(): number
  /** Frees a slot. Remove its namespace first. */
  release(slot: number): void
  /** Creates namespaces in the background until `prewarmCount` are ready. Logs a failure. */
  prewarm(): void
  /** How many namespaces are ready, and how many networks the address pool still has space for, these included. */
  use(): { readonly ready: number; readonly free: number }
  /** Waits for namespaces that are being created, and removes the unused namespaces. */
  close(): Promise<void>
}

/** How many namespaces to create in one batch. The batch is small, so the first namespace is ready soon. */
const PREWARM_BATCH = 4

/**
 * How long prewarming waits after a start has used a namespace. Prewarming would compete with that start for the
 * processor: mounts and network took 45 ms with it, and 25 ms without (two cores, 2026-11). `PREWARM_LATEST_MS` limits
 * the wait during continuous starts.
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
  /** Enables forwarding on host devices that were added since the last call. */
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
      // continues after the last allocated slot, so that a freed slot stays unused as long as possible
      cursor = slot
      taken.add(slot)
      return slot
    }
    throw new Error(`the address pool is exhausted: it has space for ${String(count - 1)} networks`)
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
        log.warn({ error }, 'sandbox networks could not be created ahead; each start creates its own')
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
    use: () => ({ ready: ready.length, free: count - taken.size + ready.length }),
    close: async () => {
      isClosing = true
      later.close()
      if (filling !== null) await filling
      await removeSandboxNamespaces(names, ready.splice(0))
    },
  }
}
