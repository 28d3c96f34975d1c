import { setTimeout as sleep } from 'node:timers/promises'
import type { FairTurns } from '../../lib/turns/fair-turns.ts'
import { keepWhile, type ConnectionMemory } from './connection-memory.ts'

/** For how long work begins in one turn of the event loop. To search 64 KiB takes up to 16 ms, and is not interrupted. */
export const TURN_BUDGET_MS = 2

/** How often what a waiting connection keeps is measured: its socket reads on meanwhile. */
const MEASURE_MS = 20

/**
 * Waits until work on a piece of a connection may begin. The connections of a sandbox share its turns, so that none gets more of the thread
 * by more connections. `keptBytes` tells what the connection keeps meanwhile. Rejects with `RequestRefused` if it is too much.
 */
export type SandboxTurn = (keptBytes: () => number) => Promise<void>

/** Creates the turns of one sandbox. */
export function makeSandboxTurn(turns: FairTurns, sandbox: string, memory: ConnectionMemory): SandboxTurn {
  return async (keptBytes) => {
    const turn = turns.next(sandbox)
    if (turn === null) return
    let isOver = false
    const over = turn.then(() => {
      isOver = true
    })
    while (!isOver) await keepWhile(memory, keptBytes(), () => Promise.race([over, sleep(MEASURE_MS)]))
  }
}
