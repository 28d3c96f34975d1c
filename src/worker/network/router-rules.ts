import { CommandError } from '../../lib/run-command.ts'
import type { Installation } from './installation.ts'
import { nft } from './system.ts'

/** Changes of the router's packet filter. */
export type RouterRules = {
  /** Puts the lines in force, all of them or none; rejects when they were refused. Where two change the same, the first comes first. */
  apply(lines: readonly string[]): Promise<void>
}

/** What is read by one process at most, with room for the pipe that it comes through. */
const TOGETHER_LIMIT_BYTES = 40_000

type Change = {
  readonly lines: readonly string[]
  readonly done: () => void
  readonly failed: (error: unknown) => void
}

/**
 * Changes that come while others are put in force go together after them: of the 7 ms of processor that a change takes, its own
 * part is small, and what nft asks of the kernel first grows with the number of sandboxes (2026-11).
 */
export function makeRouterRules(names: Installation): RouterRules {
  const waiting: Change[] = []
  let isWorking = false

  /** It is over in the same moment in which nothing waits: what comes later begins the next. */
  async function work(): Promise<void> {
    if (isWorking) return
    isWorking = true
    while (waiting.length > 0) await applyTogether(names, takeSome(waiting))
    isWorking = false
  }
  return {
    apply: (lines) =>
      new Promise((done, failed) => {
        waiting.push({ lines, done, failed })
        void work()
      }),
  }
}

function takeSome(waiting: Change[]): readonly Change[] {
  const taken: Change[] = []
  let bytes = 0
  for (let next = waiting[0]; next !== undefined; next = waiting[0]) {
    bytes += next.lines.reduce((sum, line) => sum + Buffer.byteLength(line) + 1, 0)
    if (taken.length > 0 && bytes > TOGETHER_LIMIT_BYTES) break
    taken.push(next)
    waiting.shift()
  }
  return taken
}

/** Never rejects: each change is told its own end. */
async function applyTogether(names: Installation, changes: readonly Change[]): Promise<void> {
  const lines = changes.flatMap((change) => change.lines)
  try {
    await nft(names.commands, lines, names.router)
    for (const { done } of changes) done()
  } catch (error) {
    const isShared = changes.length > 1 && error instanceof CommandError
    if (!isShared) for (const { failed } of changes) failed(error)
    // One that is refused must not take the others with it.
    else for (const change of changes) await applyTogether(names, [change])
  }
}
