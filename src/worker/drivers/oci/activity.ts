import { duplexPair, pipeline, Transform, type Duplex } from 'node:stream'
import type { RunId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'

/** When each run was last used. Kept in memory: after a restart of the worker the time starts anew. */
export type Activity = {
  touch(run: RunId): void
  forget(run: RunId): void
  /** Whether nothing happened for the whole timeout. The first question about a run starts its time. */
  isIdle(run: RunId, timeoutSecs: number): boolean
}

/** Activity by a clock. */
export function makeActivity(clock: Clock): Activity {
  const lastMs = new Map<RunId, number>()
  return {
    touch(run) {
      lastMs.set(run, clock.monotonicMs())
    },
    forget(run) {
      lastMs.delete(run)
    },
    isIdle(run, timeoutSecs) {
      const nowMs = clock.monotonicMs()
      const last = lastMs.get(run)
      if (last === undefined) lastMs.set(run, nowMs)
      return last !== undefined && nowMs - last >= timeoutSecs * 1000
    },
  }
}

/** The same channel, that tells of every byte in either direction. Its end or failure ends both sides. */
export function tap(channel: Duplex, onBytes: () => void): Duplex {
  const [outer, inner] = duplexPair()
  const teller = (): Transform =>
    new Transform({
      transform(chunk, _encoding, done) {
        onBytes()
        done(null, chunk)
      },
    })
  const end = (error: Error | null | undefined): void => {
    if (error === null || error === undefined) return
    outer.destroy(error)
    channel.destroy(error)
  }
  pipeline(inner, teller(), channel, end)
  pipeline(channel, teller(), inner, end)
  outer.once('close', () => {
    inner.destroy()
    channel.destroy()
  })
  channel.once('close', () => {
    // What the channel still said is passed on before the end.
    if (!inner.writableEnded && !inner.destroyed) inner.end()
  })
  return outer
}
