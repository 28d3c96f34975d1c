import { moveEach, type MoveAllDeps } from '../control/sandboxes/transitions/transition-batches.ts'
import type { TransitionResult } from '../control/sandboxes/transitions/transition.ts'
import { quotaProblem } from '../domain/orgs/quota-problem.ts'
import { SYSTEM_ACTOR } from '../domain/orgs/caller.ts'
import { RESTARTS_MAX } from '../domain/sandboxes/restart.ts'
import * as restarts from '../store/sandboxes/restarts.ts'
import { untilDueMs, type Loop } from './loop.ts'

/** The longest time between two passes, in milliseconds: the shortest back-off. */
const PERIOD_MS = 1_000
/** How many sandboxes are started at once. */
const BATCH = 100
/** How long a restart waits that was refused, for example because of a quota, in milliseconds. */
const REFUSED_WAIT_MS = 60_000

/**
 * Starts sandboxes again whose restart policy (`domain/sandboxes/restart.ts`) asks for it. The end of a run stores when.
 * Quotas, suspensions and limits hold as for the start of a client. A refused restart is tried again.
 */
export function makeRestartEndedLoop(deps: MoveAllDeps): Loop {
  return { name: 'restart-ended', periodMs: PERIOD_MS, topics: [], run: (signal) => pass(deps, signal) }
}

async function pass(deps: MoveAllDeps, signal: AbortSignal): Promise<number | null> {
  signal.throwIfAborted()
  const now = deps.clock.now()
  const restMs = untilDueMs(await deps.db.asSystem((q) => restarts.nextDue(q)), now)
  if (restMs !== 0) return restMs
  const due = await deps.db.asSystem((q) => restarts.listDue(q, now, BATCH))
  const requests = due.map(({ sandbox_id, restart_count }) => {
    const message = `restart ${String(restart_count)} of at most ${String(RESTARTS_MAX)} in a row`
    const cause = { actor: SYSTEM_ACTOR, code: 'restart_policy', message } as const
    return { sandbox_id, run_id: null, event: 'start_admitted', cause } as const
  })
  const results = await moveEach(deps, requests)
  let failed = 0
  for (const [index, result] of results.entries()) {
    const sandbox_id = due[index]?.sandbox_id
    if (sandbox_id === undefined) continue
    if ('error' in result) {
      failed += 1
      deps.log.error({ error: result.error, sandbox_id }, 'could not restart a sandbox; will retry')
      continue
    }
    const refused = refusalOf(result)
    if (refused === null) continue
    const until = refused.isFinal ? null : new Date(now.getTime() + REFUSED_WAIT_MS)
    const message = `sandyard.restart: ${refused.why}`
    deps.log.info({ sandbox_id, refused: refused.why }, 'the restart of a sandbox was refused')
    await deps.db.transaction('system', async (tx) => {
      await deps.fence?.(tx)
      await restarts.postpone(tx, { sandbox_id, now, until, message })
    })
  }
  return failed > 0 ? null : 0 // after a failure, an immediate pass would be a busy loop
}

function refusalOf(result: TransitionResult): { readonly why: string; readonly isFinal: boolean } | null {
  if (!('answer' in result)) return null
  const { answer } = result
  if (answer.kind === 'refused')
    return { why: `${quotaProblem(answer.refusal, answer.slug).message}; tried again every minute`, isFinal: false }
  if (answer.kind === 'volumes_gone')
    return { why: `the sandbox mounts deleted volumes: ${answer.names.join(', ')}`, isFinal: true }
  return null
}
