import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { asId, type RunId } from '../../../../domain/ids.ts'
import { isAlive } from '../../../processes/process-identity.ts'
import type { WarmStarts } from '../../driver.ts'
import type { OciContext } from '../context.ts'
import { warmLimit } from '../warm-limit.ts'
import { makeWarmSandbox, removeWarmSandbox, type WarmSandbox } from './make-warm-sandbox.ts'
import { makeShapeDemand } from '../../shared/shape-demand.ts'
import { warmShapeOf, type WarmShape } from './warm-shape.ts'

/**
 * Sandboxes that are ready before a run asks for them, for the shapes that were asked for most. A warm sandbox is in no record and no
 * list. It belongs to a run from the first write of a record with its id, and serves one run only.
 */
export type WarmSandboxes = {
  /** Takes a warm sandbox out for a new run. Null if none fits. The run's record must name it. */
  take(desired: DesiredRun): WarmSandbox | null
  /** Returns the one that was taken for a run, once. */
  takenFor(run: RunId): WarmSandbox | null
  /** Removes those that are no longer worth having, and makes missing ones unless starts are under way. */
  fillPool(): Promise<void>
  /** Makes no warm sandbox during a start: it would take processor time from a burst of them. */
  during(start: () => Promise<void>): Promise<void>
  /** Removes those that no run has taken, and so frees what they hold. */
  removeAll(): Promise<void>
  readonly pooledCount: number
  readonly starts: WarmStarts
  /** Removes those that no run has taken. Call it when no `fillPool` runs. */
  close(): Promise<void>
}

/** How long a sandbox that was taken stays without a record of its run, whose write failed. */
const UNRECORDED_MS = 60_000
/** How long a start counts as under way. One that fetches an image takes longer, but little processor time. */
const UNDER_WAY_MS = 5_000
/** So many networks and user ids stay free for plain starts. */
const FREE_FOR_PLAIN = 64

/** Makes the pool, which is empty until `fillPool`. */
export function makeWarmSandboxes(context: OciContext): WarmSandboxes {
  const { settings, clock, log, random, records, disks, users, networks } = context
  const most = warmLimit(context)
  const demand = makeShapeDemand<WarmShape>(clock)
  const starts = { hit: 0, miss: 0, unsuited: 0 }
  const closing = new AbortController()
  const taken = new Map<RunId, { readonly warm: WarmSandbox; readonly atMs: number }>()
  const startedAtMs = new Map<symbol, number>()
  let ready: WarmSandbox[] = []

  const remove = async (removed: readonly WarmSandbox[]): Promise<void> => {
    ready = ready.filter((warm) => !removed.includes(warm))
    await Promise.all(removed.map((warm) => removeWarmSandbox(context, warm)))
  }
  const removeUnrecorded = async (): Promise<void> => {
    for (const [run, { warm, atMs }] of taken) {
      if (records.read(run) !== null || clock.monotonicMs() - atMs < UNRECORDED_MS) continue
      taken.delete(run)
      await removeWarmSandbox(context, warm)
    }
  }
  const make = async (shape: WarmShape): Promise<boolean> => {
    const id = asId<RunId>(newContainerId(random.bytes(16)))
    try {
      const warm = await makeWarmSandbox(context, shape, { id, signal: closing.signal })
      ready.push(warm)
      return true
    } catch (error) {
      if (!closing.signal.aborted) log.info({ error }, 'a sandbox could not be made ready ahead of its start')
      demand.forget(shape)
      return false
    }
  }
  const isStarting = (): boolean => [...startedAtMs.values()].some((atMs) => clock.monotonicMs() - atMs < UNDER_WAY_MS)
  const hasSpace = async (): Promise<boolean> =>
    !closing.signal.aborted &&
    users.freeCount > FREE_FOR_PLAIN &&
    networks.use().free > FREE_FOR_PLAIN &&
    !(await settings.diskReserve.isShort())

  return {
    take(desired) {
      if (most === 0) return null
      const shape = disks.isReady(desired.sandbox_id) ? null : warmShapeOf(desired, settings)
      if (shape === null) {
        starts.unsuited += 1
        return null
      }
      demand.note(shape)
      const warm = ready.find((one) => one.shape.key === shape.key && isAlive(one.init) && isAlive(one.shim))
      starts[warm === undefined ? 'miss' : 'hit'] += 1
      if (warm === undefined) return null
      ready = ready.filter((one) => one !== warm)
      taken.set(desired.run_id, { warm, atMs: clock.monotonicMs() })
      return warm
    },
    takenFor(run) {
      const found = taken.get(run)
      taken.delete(run)
      return found?.warm ?? null
    },
    async fillPool() {
      await removeUnrecorded()
      const wanted = demand.wanted(most)
      const kept = wanted.flatMap(({ shape, count }) =>
        ready.filter((one) => one.shape.key === shape.key && isAlive(one.init) && isAlive(one.shim)).slice(0, count),
      )
      await remove(ready.filter((warm) => !kept.includes(warm)))
      for (const { shape, count } of wanted)
        while (ready.filter((one) => one.shape.key === shape.key).length < count)
          if (isStarting() || !(await hasSpace()) || !(await make(shape))) break
    },
    async during(start) {
      const one = Symbol('start')
      startedAtMs.set(one, clock.monotonicMs())
      try {
        await start()
      } finally {
        startedAtMs.delete(one)
      }
    },
    removeAll: () => remove(ready),
    get pooledCount() {
      return ready.length
    },
    get starts() {
      return { ...starts }
    },
    async close() {
      closing.abort(new Error('the worker is closing'))
      await remove(ready)
    },
  }
}

/** Returns an id in the form of a run's id, a UUID. */
function newContainerId(bytes: Buffer): string {
  const hex = bytes.toString('hex')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)].join('-')
}
