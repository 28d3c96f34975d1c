import type { DesiredRun } from '../../contract/workers/worker-protocol.ts'
import type { WorkerAction } from '../../domain/workers/decide.ts'
import type { Driver } from '../drivers/driver.ts'

/** Does what was decided for a run; `order` is its wish, which a start needs. May be repeated. */
export async function perform(
  driver: Driver,
  action: WorkerAction,
  order: DesiredRun | undefined,
  abort: AbortSignal,
): Promise<void> {
  switch (action.kind) {
    case 'start':
      if (order !== undefined) await driver.start(order, abort)
      return
    case 'stop':
      await driver.stop(action.run_id, action.grace_ms)
      return
    case 'remove':
      await driver.remove(action.run_id)
  }
}
