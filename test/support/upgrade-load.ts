import { systemClock } from '../../src/lib/clock.ts'
import { call } from './api.ts'
import { runMsb } from './msb.ts'
import { DEMO_IMAGE } from './sdk.ts'

type Target = { readonly url: string; readonly key: string; readonly clientEnv: Readonly<Record<string, string>> }

/** What clients saw while an upgrade ran. */
export type UpgradeLoad = {
  /** The ids of the sandboxes whose creation was acknowledged. */
  readonly created: readonly string[]
  /** The errors that answered creates. */
  readonly failedCreates: readonly string[]
  /** Creates whose connection ended before the answer, as one may that a stopping server closes. Clients repeat them. */
  readonly unanswered: number
  readonly execs: number
  readonly failedExecs: readonly string[]
  readonly slowestCreateMs: number
}

const PAUSE_MS = 100
/** The number of sandboxes that are started; all others are only created. Workers of tests are small. */
const STARTED = 5
const SMALL = { vcpus: 1, memory_mib: 64, disk_size_mib: 64 }

/**
 * Creates sandboxes whose names begin with `prefix`, and runs commands in the sandbox `steady`, one after the other, until
 * `during` has ended. Resolves with what it saw.
 */
export async function underUpgradeLoad(
  target: Target,
  { prefix, steady }: { readonly prefix: string; readonly steady: string | null },
  during: () => Promise<void>,
): Promise<UpgradeLoad> {
  const seen = { created: [] as string[], failedCreates: [] as string[], unanswered: 0, execs: 0, failedExecs: [] as string[], slowestCreateMs: 0 } // prettier-ignore
  let isOver = false
  const creating = (async () => {
    for (let index = 0; !isOver; index += 1) {
      const fromMs = systemClock.monotonicMs()
      const id = await create(`${prefix}-${String(index)}`, index < STARTED)
      seen.slowestCreateMs = Math.max(seen.slowestCreateMs, systemClock.monotonicMs() - fromMs)
      if (id !== null) seen.created.push(id)
      await systemClock.sleep(PAUSE_MS)
    }
  })()
  const executing = (async () => {
    for (; !isOver && steady !== null; seen.execs += 1) {
      const { code, stderr } = await runMsb(target, ['exec', steady, '--', 'true'])
      if (code !== 0) seen.failedExecs.push(stderr)
    }
  })()
  try {
    await during()
  } finally {
    isOver = true
    await Promise.all([creating, executing])
  }
  return seen

  /** Creates a sandbox. Resolves with null if there was no acknowledgement. */
  async function create(name: string, isStarted: boolean): Promise<string | null> {
    const body = { name, image: DEMO_IMAGE, resources: SMALL }
    try {
      const answer = await call(target, 'create_sandbox', { query: { start: String(isStarted) }, body })
      if (!answer.isRefusal) return answer.body.id
      seen.failedCreates.push(answer.text)
    } catch (error) {
      if (!(error instanceof TypeError)) throw error // that is how fetch reports a connection
      seen.unanswered += 1
    }
    return null
  }
}
