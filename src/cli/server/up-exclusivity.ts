import { listWorkers } from '../../control/workers/fleet.ts'
import { LOCAL_WORKER_NAME } from '../../domain/workers/worker.ts'
import type { RunningControl } from './start-control.ts'

/**
 * The rule that an `up` must be the only server process, for error messages. The reason: the worker inside `up` keeps
 * its sandboxes when it loses the control plane, because on a single machine destroying them would only lose work.
 * Another server process could mark these sandboxes as lost and start them a second time elsewhere.
 */
const UP_RULE =
  '`sandyard up` needs a database of its own. To run several server processes, use `sandyard serve` and `sandyard worker`'

/** Throws when other server processes use this database. `up` calls it. */
export function requireNoOtherServer({ others }: Pick<RunningControl, 'others'>): void {
  if (others === 0) return
  throw new Error(
    `${String(others)} other server processes use this database, or did within the last minute. ${UP_RULE}`,
  )
}

/** Throws when an `up` uses this database. `serve` calls it. */
export async function requireNoUpServer({ deps }: Pick<RunningControl, 'deps'>): Promise<void> {
  for await (const { name, state } of listWorkers(deps))
    if (name === LOCAL_WORKER_NAME && (state === 'live' || state === 'draining'))
      throw new Error(`\`sandyard up\` uses this database, or did within the last half minute. ${UP_RULE}`)
}
