import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import type { ControlPlane } from '../../src/worker/agent/control-plane.ts'
import { makeIncarnation, type Ending, type Gates, type Incarnation } from './gates.ts'
import type { Replica } from './replica.ts'

/** The network between workers and replicas. Every message waits at a gate, which can't open while its link is cut. */
export type Network = {
  /** Creates the connection of one worker process to the control plane. */
  connect(worker: Incarnation, link: Link): ControlPlane
}

/** The directions in which a machine's link is cut, from the point of view of its worker. */
export type Link = { dropsInbound: boolean; dropsOutbound: boolean }

/**
 * A worker waits this much longer for a reply than the control plane may hold a sync. The real worker's client does the
 * same.
 */
const SYNC_TIMEOUT_MARGIN_MS = 7_000

const REQUEST_ENDINGS: readonly Ending[] = ['done', 'refused', 'twice']
const REPLY_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'pauses_after']

/** Creates the network of one schedule. `chooseReplica` picks the replica for a new request; null: none is running. */
export function makeNetwork(gates: Gates, chooseReplica: () => Replica | null): Network {
  /** Messages in transit belong to no process: they arrive even if their sender is gone. */
  const inTransit = makeIncarnation('network')
  return {
    connect(worker, link) {
      const exchange = async (request: SyncRequest, hungUp: AbortSignal): Promise<SyncAnswer> => {
        const replica = chooseReplica()
        if (replica === null) throw new Error('connection refused')
        const reset = Promise.withResolvers<SyncAnswer>()
        const answers: Promise<SyncAnswer>[] = []
        const sent = copyOf(request)
        const label = `${worker.name} to ${replica.incarnation.name}, ${String(request.seq)}`
        replica.incarnation.onDeath(() => {
          reset.reject(new Error('connection reset'))
        })
        const arrival = gates.pass(
          inTransit,
          {
            kind: 'request',
            label,
            endings: REQUEST_ENDINGS,
            canOpen: () => !link.dropsOutbound && !replica.incarnation.isPaused,
          },
          () => {
            if (replica.incarnation.isDead) throw new Error('connection refused')
            const deliver = (): void => {
              if (!replica.incarnation.isDead) answers.push(serve(replica, sent, hungUp))
            }
            if (answers.length === 0) deliver()
            else
              void gates.pass(
                inTransit,
                { kind: 'request', label: `${label} again`, canOpen: () => !replica.incarnation.isPaused },
                deliver,
              ) // a second copy of the request: it arrives later, and nobody reads the reply to it
          },
        )
        await Promise.race([arrival, reset.promise])
        const answer = await Promise.race([...answers.slice(0, 1), reset.promise])
        return gates.pass(
          worker,
          {
            kind: 'reply',
            label: `${replica.incarnation.name} to ${worker.name}, ${String(request.seq)}`,
            endings: REPLY_ENDINGS,
            canOpen: () => !link.dropsInbound,
          },
          () => copyOf(answer),
        )
      }
      const serve = (replica: Replica, request: SyncRequest, hungUp: AbortSignal): Promise<SyncAnswer> => {
        const gone = new AbortController()
        const onHangUp = (): void => {
          void gates.pass(replica.incarnation, { kind: 'hang_up', label: worker.name }, () =>
            gone.abort(new Error('hung up')),
          )
        }
        if (hungUp.aborted) onHangUp()
        else hungUp.addEventListener('abort', onHangUp, { once: true })
        const answer = replica.sync(request, AbortSignal.any([gone.signal, gates.ended]))
        // Nobody reads the reply to a second copy of a request, so nobody else handles its rejection.
        answer.catch(() => null)
        return answer
      }
      return {
        async sync(request, signal) {
          const over = new AbortController()
          const late = gates.sleep(worker, SYNC_HOLD_MS + SYNC_TIMEOUT_MARGIN_MS, over.signal).then(() => {
            throw new Error('the sync timed out')
          })
          const hungUp = new AbortController()
          const stopped = new Promise<never>((_, reject) => {
            signal.addEventListener('abort', () => {
              reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
            })
          })
          try {
            signal.throwIfAborted()
            return await Promise.race([exchange(request, hungUp.signal), late, stopped])
          } catch (error) {
            hungUp.abort()
            throw error
          } finally {
            late.catch(() => null) // the timeout is aborted below, and nobody awaits it any more
            over.abort(new Error('answered'))
          }
        },
        dial: () => Promise.reject(new Error('no streams in a schedule')),
        fetchSnapshot: () => Promise.reject(new Error('there are no snapshots')),
        releaseBytes: () => undefined,
        standBy: () => new Promise(() => inTransit), // no stream is ever requested
      }
    },
  }
}

/** A message as its receiver gets it: serialized as JSON and parsed again. */
function copyOf<T extends SyncRequest | SyncAnswer>(message: T): T {
  return JSON.parse(JSON.stringify(message)) as T // parsed from the text of a T
}

/** The storage of a worker without volumes. */
export const NO_VOLUMES = {
  root: '/none',
  report: { is_shared: false, enforces_caps: false, how: 'a worker of a schedule' },
  open: () => Promise.reject(new Error('no volumes in a schedule')),
  promisedBytes: () => 0,
  folderLimits: null,
  hasDirectWrites: false,
  applyCaps: () => Promise.resolve(),
  remove: () => Promise.resolve(),
  measure: () => Promise.resolve([]),
  close: () => Promise.resolve(),
}
