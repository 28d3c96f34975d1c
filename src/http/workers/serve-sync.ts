import type { FastifyInstance } from 'fastify'
import type { SyncAnswer, SyncRequest } from '../../contract/workers/worker-protocol.ts'
import type { ControlDeps } from '../../control/make-deps.ts'
import { holdStill } from '../../control/workers/hold-still.ts'
import { holdSync } from '../../control/workers/hold-sync.ts'
import { makeStillSyncs, type StillSync } from '../../control/workers/still-syncs.ts'
import type { Tickets } from '../../control/workers/worker-sync.ts'
import { markOf } from './sync-mark.ts'

/** Hands bodies over as they are: most syncs say what the one before said, and are not read. */
export function takeUnreadBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => {
    done(null, body)
  })
}

/** A sync that arrived. */
export type ArrivedSync = {
  readonly credential: string | null
  readonly body: Buffer
  /** The report itself, of the worker that the credential belongs to; throws for one that is not to be served. */
  readonly read: () => Promise<SyncRequest>
}

/** A sync whose place in its worker's life is known. */
export type PlacedSync = {
  readonly worker: SyncRequest['worker_id']
  readonly life: string
  readonly seq: number
  /** Resolves with the answer; `onTaken` is called when the report was taken in, which may be long before. */
  serve(onTaken: () => void, signal: AbortSignal): Promise<SyncAnswer>
}

/** Finds out of syncs as much as is needed to serve them. */
export function makeSyncServing(control: ControlDeps, tickets: Tickets): (sync: ArrivedSync) => Promise<PlacedSync> {
  const stills = makeStillSyncs(control)

  return async ({ credential, body, read }) => {
    const mark = credential === null ? null : markOf(body)
    const still = credential === null || mark === null ? null : stills.find(credential, mark)
    const { worker_id, life, seq } =
      still === null || mark === null ? await read() : { ...mark, worker_id: still.worker }

    const serveRead = async (onTaken: () => void, signal: AbortSignal): Promise<SyncAnswer> => {
      const report = await read()
      const note = credential === null || mark === null ? {} : { note: stills.note(credential, mark, report) }
      return holdSync({ ...control, tickets, onTaken, ...note }, worker_id, report, signal)
    }
    const serveStill = async (known: StillSync, onTaken: () => void, signal: AbortSignal): Promise<SyncAnswer> => {
      const answer = await holdStill(
        { clock: control.clock, notifications: control.notifications, tickets, onTaken },
        known,
        signal,
      )
      if (answer === 'changed') return serveRead(onTaken, signal)
      if (!('woken' in answer)) return answer
      const begun = { endMs: answer.woken.endMs, told: known.told }
      return holdSync({ ...control, tickets, onTaken, begun }, worker_id, await read(), signal)
    }
    return {
      worker: worker_id,
      life,
      seq,
      serve: (onTaken, signal) => (still === null ? serveRead(onTaken, signal) : serveStill(still, onTaken, signal)),
    }
  }
}
