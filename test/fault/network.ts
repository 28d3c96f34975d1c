import { SYNC_HOLD_MS, type SyncAnswer, type SyncRequest } from '../../src/contract/workers/worker-protocol.ts'
import type { ControlPlane } from '../../src/worker/agent/control-plane.ts'
import { makeLife, type Ending, type Gates, type Life } from './gates.ts'
import type { Replica } from './replica.ts'

/** What lies between workers and replicas. A cut lets nothing through, in the direction that it is for. */
export type Network = {
  /** The way of one life of a worker to the control plane. */
  connect(worker: Life, link: Link): ControlPlane
}

/** The link of one worker's machine. */
export type Link = { hearsNothing: boolean; saysNothing: boolean }

/** From the worker's own client: how much longer than the hold of a sync it waits for an answer. */
const SLACK_MS = 7_000

const REQUEST_ENDINGS: readonly Ending[] = ['done', 'refused', 'twice']
const REPLY_ENDINGS: readonly Ending[] = ['done', 'refused', 'dies_before', 'pauses_after']

/** Makes the network of one schedule; `choose` says which replica a new request goes to, or null when there is none. */
export function makeNetwork(gates: Gates, choose: () => Replica | null): Network {
  /** What is under way belongs to no process: it arrives even if who sent it is gone. */
  const cable = makeLife('network')
  return {
    connect(worker, link) {
      const exchange = async (request: SyncRequest, hungUp: AbortSignal): Promise<SyncAnswer> => {
        const replica = choose()
        if (replica === null) throw new Error('connection refused')
        const reset = Promise.withResolvers<SyncAnswer>()
        const answers: Promise<SyncAnswer>[] = []
        const sent = copyOf(request)
        const label = `${worker.name} to ${replica.life.name}, ${String(request.seq)}`
        replica.life.onDeath(() => {
          reset.reject(new Error('connection reset'))
        })
        const arrival = gates.pass(
          cable,
          {
            kind: 'request',
            label,
            endings: REQUEST_ENDINGS,
            isPassable: () => !link.saysNothing && !replica.life.isPaused,
          },
          () => {
            if (replica.life.isDead) throw new Error('connection refused')
            const deliver = (): void => {
              if (!replica.life.isDead) answers.push(serve(replica, sent, hungUp))
            }
            if (answers.length === 0) deliver()
            else
              void gates.pass(
                cable,
                { kind: 'request', label: `${label} again`, isPassable: () => !replica.life.isPaused },
                deliver,
              ) // late, and answered to nobody
          },
        )
        await Promise.race([arrival, reset.promise])
        const answer = await Promise.race([...answers.slice(0, 1), reset.promise])
        return gates.pass(
          worker,
          {
            kind: 'reply',
            label: `${replica.life.name} to ${worker.name}, ${String(request.seq)}`,
            endings: REPLY_ENDINGS,
            isPassable: () => !link.hearsNothing,
          },
          () => copyOf(answer),
        )
      }
      const serve = (replica: Replica, request: SyncRequest, hungUp: AbortSignal): Promise<SyncAnswer> => {
        const gone = new AbortController()
        const hear = (): void => {
          void gates.pass(replica.life, { kind: 'hang_up', label: worker.name }, () => gone.abort(new Error('hung up')))
        }
        if (hungUp.aborted) hear()
        else hungUp.addEventListener('abort', hear, { once: true })
        const answer = replica.sync(request, gone.signal)
        answer.catch(() => null) // a second copy of a request is answered to nobody
        return answer
      }
      return {
        async sync(request, signal) {
          const over = new AbortController()
          const late = gates.sleep(worker, SYNC_HOLD_MS + SLACK_MS, over.signal).then(() => {
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
            late.catch(() => null) // it was only a limit
            over.abort(new Error('answered'))
          }
        },
        dial: () => Promise.reject(new Error('no streams in a schedule')),
        standBy: () => new Promise(() => cable), // it stands by for a stream that nobody asks for
      }
    },
  }
}

/** What is sent is read on the other side from its text. */
function copyOf<T extends SyncRequest | SyncAnswer>(message: T): T {
  return JSON.parse(JSON.stringify(message)) as T // the text of a T
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
