import type { RunOutcome } from '../../../contract/workers/worker-protocol.ts'
import type { RunId } from '../../../domain/ids.ts'
import type { Log } from '../../../lib/log.ts'
import { StartError, asStartError } from '../../start-error.ts'

export type Attempt = {
  readonly run: RunId
  readonly log: Log
  readonly signal: AbortSignal
  readonly bringUp: () => Promise<void>
  /** Records how the run ended and lets go of all that there is of it. */
  readonly endWith: (outcome: RunOutcome) => Promise<unknown>
}

/**
 * Brings a run up. When that fails the run is ended with the failure, and this rejects with it, as a `StartError`: of kind
 * `cancelled` when the signal came. What can't be let go of then stays on record, and is tried again with every look at the
 * runs.
 */
export async function attemptStart({ run, log, signal, bringUp, endWith }: Attempt): Promise<void> {
  try {
    await bringUp()
  } catch (error) {
    const failure = signal.aborted
      ? new StartError('cancelled', 'the start was cancelled', error)
      : asStartError('host', error)
    log.warn({ run_id: run, reason: failure.reason, err: failure }, 'start failed')
    try {
      await endWith({ kind: 'start_failed', reason: failure.reason, message: failure.message })
    } catch (left) {
      log.error({ run_id: run, err: left }, 'cleaning up after a failed start failed')
    }
    throw failure
  }
}
