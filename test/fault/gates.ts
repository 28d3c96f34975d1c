/**
 * Gates make a schedule deterministic. Wherever the code under test waits, it waits at a gate: for a reply of the
 * database, a message, an action of the driver or a timer. The schedule opens the gates one by one and chooses the
 * outcome of each action. It opens the next gate only once all code waits again. The same seed therefore gives the same
 * order of events.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'

/**
 * The outcomes of an action that waits at a gate. `reported_failed`: the action is done, but its caller gets an error.
 */
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
 * One process from its start to its end. The gates of a dead process never open, so its code never continues. The gates
 * of a paused process stay shut until it is resumed.
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
  /** The earliest time at which the gate may open, in the schedule's time. Null: at any time. */
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
  /**
   * Adds a gate for `incarnation` and does `work` once the gate opens. If the process dies first, the promise never
   * settles.
   */
  pass<T>(incarnation: Incarnation, options: PassOptions, work: () => Promise<T> | T): Promise<T>
  /** Resolves after `ms` of the schedule's time, or rejects with the signal's reason. */
  sleep(incarnation: Incarnation, ms: number, signal?: AbortSignal): Promise<void>
  /** Resolves once all code under test waits at a gate. */
  waitUntilIdle(): Promise<void>
  /**
   * Aborted by `end`. Every signal that the code under test gets must follow it: Node keeps a composite signal that has a
   * listener, and thereby everything that waits for it, until one of its sources is aborted.
   */
  readonly ended: AbortSignal
  /** Ends the schedule, when all its processes are dead. */
  end(): void
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

/**
 * Turns of the event loop without a change of the gates after which all code waits. A batch takes one turn to start.
 */
const IDLE_TURNS = 3

/** Creates the gates of one schedule. */
export function makeGates(): Gates {
  const waiting = new Map<number, Gate>()
  let nowMs = 0
  let lastId = 0
  let activity = 0
  const end = new AbortController()

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
    ended: end.signal,
    end: () => end.abort(),
  }
}
