import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import type { ControlPlane } from '../../src/worker/agent/control-plane.ts'
import { makeIncarnation, type Ending, type Gates, type Incarnation } from './gates.ts'
import type { Replica } from './replica.ts'

/** The network between workers and replicas. A cut link lets nothing through in the directions that are cut. */
export type Network = {
  /** How one process of a worker reaches the control plane. */
  connect(worker: Incarnation, link: Link): ControlPlane
}

/** The link of one machine, as its worker sees it: which direction is cut. */
export type Link = { dropsInbound: boolean; dropsOutbound: boolean }

/** How much longer than the control plane holds a sync the worker waits for the reply, as its own client does. */
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
              ) // late; its reply goes nowhere
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
        const answer = replica.sync(request, gone.signal)
        answer.catch(() => null) // the reply to a second copy of a request goes nowhere
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
            late.catch(() => null) // it is only a timeout
            over.abort(new Error('answered'))
          }
        },
        dial: () => Promise.reject(new Error('no streams in a schedule')),
        standBy: () => new Promise(() => inTransit), // no stream is ever requested
      }
    },
  }
}

/** A copy of a message, as the other side parses it from text. */
function copyOf<T extends SyncRequest | SyncAnswer>(message: T): T {
  return JSON.parse(JSON.stringify(message)) as T // parsed from the text of a T
}

/** The storage of a worker without volumes. */
export const NO_VOLUMES = {
  report: { is_shared: false, enforces_caps: false, how: 'a worker of a schedule' },
  open: () => Promise.reject(new Error('no volumes in a schedule')),
  applyCaps: () => Promise.resolve(),
  remove: () => Promise.resolve(),
  measure: () => Promise.resolve([]),
  close: () => Promise.resolve(),
}
