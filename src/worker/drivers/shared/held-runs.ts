import type { RunId } from '../../../domain/ids.ts'
import type { ObservedRun } from '../../../contract/workers/worker-protocol.ts'
import type { KeyedMutex } from '../../../lib/keyed-mutex.ts'
import type { RunRecords } from './run-records.ts'
import type { StartsInFlight } from './starts.ts'

export type HeldRunsInput<R> = {
  readonly records: Pick<RunRecords<R>, 'list' | 'read'>
  readonly starts: Pick<StartsInFlight, 'has'>
  readonly mutex: KeyedMutex
  /** How a run stands, by its record; `isBeingStarted`: its start is in flight. */
  readonly see: (record: R, isBeingStarted: boolean) => Promise<ObservedRun>
  /** Brings a run that has ended to rest. */
  readonly settle: (record: R) => Promise<unknown>
}

/** The runs that a driver has on record. */
export type HeldRuns = {
  /** As the machine shows them. */
  readonly list: () => Promise<readonly ObservedRun[]>
  /** Brings a run that has ended to rest, in its turn; one whose start is in flight, or that is unknown, is left alone. */
  readonly settleEnded: (run: RunId) => Promise<void>
}

/** Looks at runs by their records, anew each time. */
export function makeHeldRuns<R extends { readonly run_id: RunId; readonly started: unknown }>({
  records,
  starts,
  mutex,
  see,
  settle,
}: HeldRunsInput<R>): HeldRuns {
  const seeFresh = async (read: R): Promise<ObservedRun | null> => {
    // A start that came to its end since this was read has written how: the old record would look like one cut short.
    const record = read.started === null && !starts.has(read.run_id) ? await records.read(read.run_id) : read
    return record === null ? null : await see(record, starts.has(record.run_id))
  }
  return {
    async list() {
      const seen = await Promise.all((await records.list()).map((record) => seeFresh(record)))
      return seen.filter((run) => run !== null)
    },
    async settleEnded(run) {
      await mutex.run(run, async () => {
        const record = starts.has(run) ? null : await records.read(run)
        if (record !== null) await settle(record)
      })
    },
  }
}
