import type { SandboxId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock, NOTIFIED } from '../../lib/clock.ts'
import type { Driver } from '../drivers/driver.ts'
import type { SandboxLogs } from '../logs/logs.ts'

/** What lies here of sandboxes that are gone, until it is deleted. */
export type Discards = {
  /** Takes in what an answer wants deleted; who rests for an earlier one rests no longer. */
  setPending(sandboxes: readonly SandboxId[]): void
  /** Those of which no run is held: only they may be deleted. */
  ready(held: readonly { readonly sandbox_id: SandboxId }[]): readonly SandboxId[]
  /** Deletes a sandbox's writable layer and log. May be repeated. */
  discard(sandbox: SandboxId): Promise<void>
  /** Resolves once all that was taken last is deleted, another answer came, or the time is over. */
  waitUntilDone(limitMs: number): Promise<void>
}

/** Keeps what is to be deleted; the signal ends every rest. */
export function makeDiscards(
  deps: { readonly driver: Driver; readonly logs: Pick<SandboxLogs, 'discard'>; readonly clock: Clock },
  signal: AbortSignal,
): Discards {
  let wanted: readonly SandboxId[] = []
  let over = new AbortController()
  return {
    setPending(sandboxes) {
      over.abort(NOTIFIED)
      over = new AbortController()
      wanted = sandboxes
    },
    ready: (held) => wanted.filter((sandbox) => !held.some(({ sandbox_id }) => sandbox_id === sandbox)),
    async discard(sandbox) {
      await deps.driver.discard(sandbox)
      await deps.logs.discard(sandbox)
      wanted = wanted.filter((one) => one !== sandbox) // the next answer comes later than the next look
      if (wanted.length === 0) over.abort(NOTIFIED)
    },
    async waitUntilDone(limitMs) {
      if (wanted.length > 0) await interruptibleSleep(deps.clock, limitMs, AbortSignal.any([over.signal, signal]))
    },
  }
}
