/**
 * Gates decide the order of everything. Whatever the code under test waits for is a gate: a reply of the database, a message, an
 * action of the driver, a time. A gate stays shut until the schedule opens it, and the schedule also decides how the action goes.
 * Between two openings nothing runs. The schedule therefore decides the order of all that happens, and a seed replays it.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'

/** How an action that waits at a gate goes. `reported_failed`: it is done, but its caller gets an error. */
export const ENDINGS = [
  'done',
  'refused',
  'reported_failed',
  'dies_before',
  'dies_after',
  'twice',
  'pauses_after',
] as const
export type Ending = (typeof ENDINGS)[number]

export type GateKind =
  'read' | 'write' | 'driver' | 'request' | 'reply' | 'hang_up' | 'notification' | 'runtime_change' | 'answer' | 'timer'

/**
 * One process from its start to its end. Nothing that a dead process waits for ever arrives, so that its code never continues.
 * The same holds for a paused process until it is resumed.
 */
export type Incarnation = {
  readonly name: string
  readonly isDead: boolean
  readonly isPaused: boolean
  die(): void
  pause(): void
  resume(): void
  /** Calls `work` at once, or when the process is resumed; never if it is dead. */
  whenResumed(work: () => void): void
  /** Calls `work` when the process dies. */
  onDeath(work: () => void): void
}

export type Gate = {
  readonly id: number
  readonly kind: GateKind
  readonly label: string
  /** The process whose code continues when the gate opens. */
  readonly incarnation: Incarnation
  /** The schedule's time from which it may open; null: any time. */
  readonly dueMs: number | null
  readonly endings: readonly Ending[]
  /** Whether the link and the receiver let a message through now. */
  readonly canOpen: () => boolean
  readonly open: (ending: Ending) => Promise<void>
}

export type PassOptions = {
  readonly kind: GateKind
  readonly label: string
  readonly endings?: readonly Ending[]
  readonly canOpen?: () => boolean
  /** The error that the caller gets for `refused` and `reported_failed`. */
  readonly refusal?: () => Error
}

export type Gates = {
  /** Milliseconds since the schedule began. */
  readonly nowMs: number
  setNow(ms: number): void
  /** The gates that the schedule may open, the oldest first. Timers that are not due yet are included. */
  openable(): readonly Gate[]
  /** Does `work` once its gate opens. A process that dies before never gets the result. */
  pass<T>(incarnation: Incarnation, options: PassOptions, work: () => Promise<T> | T): Promise<T>
  /** Resolves after `ms` of the schedule's time, or rejects with the signal's reason. */
  sleep(incarnation: Incarnation, ms: number, signal?: AbortSignal): Promise<void>
  /** Resolves when everything that can run without a gate has run. */
  waitUntilIdle(): Promise<void>
}

/** Creates a process that is alive. */
export function makeIncarnation(name: string): Incarnation {
  let isDead = false
  let isPaused = false
  let deferred: (() => void)[] = []
  const deathListeners: (() => void)[] = []
  return {
    name,
    get isDead() {
      return isDead
    },
    get isPaused() {
      return isPaused
    },
    die() {
      if (isDead) return
      isDead = true
      for (const work of deathListeners) work()
    },
    pause() {
      isPaused = true
    },
    resume() {
      isPaused = false
      const works = deferred
      deferred = []
      for (const work of works) work()
    },
    whenResumed(work) {
      if (isDead) return
      if (isPaused) deferred.push(() => isDead || work())
      else work()
    },
    onDeath(work) {
      deathListeners.push(work)
    },
  }
}

/** After so many turns of the event loop without a new gate nothing runs any more; batches take one turn to start. */
const IDLE_TURNS = 3

/** Creates the gates of one schedule. */
export function makeGates(): Gates {
  const waiting = new Map<number, Gate>()
  let nowMs = 0
  let lastId = 0
  let activity = 0

  const add = (gate: Omit<Gate, 'id'>): number => {
    const id = ++lastId
    activity += 1
    waiting.set(id, { ...gate, id })
    return id
  }
  const remove = (id: number): void => {
    activity += 1
    waiting.delete(id)
  }

  return {
    get nowMs() {
      return nowMs
    },
    setNow(ms) {
      nowMs = ms
    },
    openable() {
      const open: Gate[] = []
      for (const gate of waiting.values()) {
        if (gate.incarnation.isDead) waiting.delete(gate.id)
        else if (!gate.incarnation.isPaused && gate.canOpen()) open.push(gate)
      }
      return open
    },
    pass: <T>(incarnation: Incarnation, options: PassOptions, work: () => Promise<T> | T): Promise<T> =>
      new Promise<T>((resolve, reject) => {
        if (incarnation.isDead) return
        const refusal = options.refusal ?? (() => new Error(`${options.label} failed because the schedule says so`))
        const id = add({
          kind: options.kind,
          label: options.label,
          incarnation,
          dueMs: null,
          endings: options.endings ?? ['done'],
          canOpen: options.canOpen ?? (() => true),
          async open(ending) {
            remove(id)
            if (ending === 'dies_before') return incarnation.die()
            if (ending === 'refused') return incarnation.whenResumed(() => reject(refusal()))
            let report: () => void
            try {
              if (ending === 'twice') await work()
              const result = await work()
              report = () => resolve(result)
            } catch (error) {
              report = () => reject(error instanceof Error ? error : new Error(String(error)))
            }
            if (ending === 'dies_after') return incarnation.die()
            if (ending === 'pauses_after') incarnation.pause()
            incarnation.whenResumed(ending === 'reported_failed' ? () => reject(refusal()) : report)
          },
        })
      }),
    sleep: (incarnation, ms, signal) =>
      new Promise((resolve, reject) => {
        if (incarnation.isDead) return
        signal?.throwIfAborted()
        const onAbort = (): void => {
          if (incarnation.isDead) return
          remove(id)
          incarnation.whenResumed(() => reject(signal?.reason instanceof Error ? signal.reason : new Error('aborted')))
        }
        const id = add({
          kind: 'timer',
          label: `sleep ${String(ms)}`,
          incarnation,
          dueMs: nowMs + ms,
          endings: ['done'],
          canOpen: () => true,
          open() {
            remove(id)
            signal?.removeEventListener('abort', onAbort)
            resolve()
            return Promise.resolve()
          },
        })
        signal?.addEventListener('abort', onAbort, { once: true })
      }),
    async waitUntilIdle() {
      for (let idleTurns = 0; idleTurns < IDLE_TURNS; idleTurns++) {
        const before = activity
        await nextTurn()
        if (activity !== before) idleTurns = -1
      }
    },
  }
}
