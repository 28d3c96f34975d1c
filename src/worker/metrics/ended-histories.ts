import type { SandboxId } from '../../domain/ids.ts'
import { interruptibleSleep, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import type { UseHistory } from './use-history.ts'

/**
 * How long the history of an ended run stays open. Many sandboxes are deleted as soon as they have stopped, and then their last
 * points are never written. A file for them took 1.3 ms of the worker's thread for each life of a sandbox (2026-11): the
 * file system waits for the commits of others meanwhile. A killed worker loses these points.
 */
const KEPT_OPEN_MS = 2_000

/** The histories of runs that ended just now, which are still to be written and closed. */
export type EndedHistories = {
  /** Takes over the history of a sandbox, and closes it after a while. An earlier one is closed at once. */
  add(sandbox: SandboxId, history: UseHistory): void
  /** Writes and closes the history of a sandbox, if it is here. */
  closeNow(sandbox: SandboxId): void
  /** Forgets what a sandbox's history has not written yet. */
  drop(sandbox: SandboxId): void
  /** Writes and closes all of them. */
  close(): void
}

export function makeEndedHistories({ clock, log }: { readonly clock: Clock; readonly log: Log }): EndedHistories {
  const held = new Map<SandboxId, { readonly history: UseHistory; readonly dueMs: number }>()
  const closing = new AbortController()
  let isWaiting = false

  const closeNow = (sandbox: SandboxId): void => {
    const one = held.get(sandbox)
    held.delete(sandbox)
    try {
      one?.history.close()
    } catch (error) {
      log.warn({ error, sandbox_id: sandbox }, 'the last metrics of a sandbox could not be written')
    }
  }
  /** Closes each history when it is due. They are in the order in which they ended. */
  const closeDue = async (): Promise<void> => {
    if (isWaiting) return
    isWaiting = true
    for (let [next] = held; next !== undefined && !closing.signal.aborted; [next] = held) {
      const [sandbox, { dueMs }] = next
      const restMs = dueMs - clock.monotonicMs()
      if (restMs > 0) await interruptibleSleep(clock, restMs, closing.signal)
      else closeNow(sandbox)
    }
    isWaiting = false
  }
  return {
    add(sandbox, history) {
      closeNow(sandbox)
      held.set(sandbox, { history, dueMs: clock.monotonicMs() + KEPT_OPEN_MS })
      void closeDue() // never rejects
    },
    closeNow,
    drop(sandbox) {
      held.get(sandbox)?.history.drop()
      held.delete(sandbox)
    },
    close() {
      closing.abort()
      for (const sandbox of held.keys()) closeNow(sandbox)
    },
  }
}
