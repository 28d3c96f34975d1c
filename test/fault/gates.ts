/**
 * Where everything waits. Whatever the code under test waits for (an answer of the database, a message, an action of the
 * driver, a time) is a gate that stays shut until the schedule opens it, in the way that the schedule says. Between two
 * openings nothing runs: so the order of all that happens is the schedule's, and a seed replays it.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'

/** How an action that waits at a gate goes. `unheard`: it is done and whoever asked for it is told that it failed. */
export const ENDINGS = ['done', 'refused', 'unheard', 'dies_before', 'dies_after', 'twice', 'pauses_after'] as const
export type Ending = (typeof ENDINGS)[number]

export type GateKind =
  'read' | 'write' | 'driver' | 'request' | 'reply' | 'hang_up' | 'wake' | 'news' | 'answer' | 'timer'

/**
 * One life of a process. Dead: nothing that it waits for ever comes, so that its code stands still for good. Paused: the
 * same until it is resumed.
 */
export type Life = {
  readonly name: string
  readonly isDead: boolean
  readonly isPaused: boolean
  die(): void
  pause(): void
  resume(): void
  /** Has something done once the process is not paused; never when it is dead. */
  whenAwake(work: () => void): void
  /** Called when it dies. */
  onDeath(work: () => void): void
}

export type Gate = {
  readonly id: number
  readonly kind: GateKind
  readonly label: string
  /** Whose code goes on when it opens. */
  readonly life: Life
  /** Null: at any time. */
  readonly dueMs: number | null
  readonly endings: readonly Ending[]
  /** Whether a message can get through now. */
  readonly isPassable: () => boolean
  readonly open: (ending: Ending) => Promise<void>
}

export type PassOptions = {
  readonly kind: GateKind
  readonly label: string
  readonly endings?: readonly Ending[]
  readonly isPassable?: () => boolean
  /** With `refused` and `unheard`: what whoever waits is told. */
  readonly refusal?: () => Error
}

export type Gates = {
  /** Milliseconds since the schedule began. */
  readonly nowMs: number
  setNow(ms: number): void
  /** Those that the schedule may open, the oldest first; timers that are not due yet are among them. */
  open(): readonly Gate[]
  /** Does `work` once its gate opens. A life that ends before never hears of it. */
  pass<T>(life: Life, options: PassOptions, work: () => Promise<T> | T): Promise<T>
  /** Resolves after `ms` of the schedule's time, or rejects with the signal's reason. */
  sleep(life: Life, ms: number, signal?: AbortSignal): Promise<void>
  /** Resolves when everything that can run without a gate has run. */
  settle(): Promise<void>
}

/** Makes one life. */
export function makeLife(name: string): Life {
  let isDead = false
  let isPaused = false
  let late: (() => void)[] = []
  const mourners: (() => void)[] = []
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
      for (const work of mourners) work()
    },
    pause() {
      isPaused = true
    },
    resume() {
      isPaused = false
      const works = late
      late = []
      for (const work of works) work()
    },
    whenAwake(work) {
      if (isDead) return
      if (isPaused) late.push(() => isDead || work())
      else work()
    },
    onDeath(work) {
      mourners.push(work)
    },
  }
}

/** So many turns of the event loop without a new gate say that nothing runs any more; batches take one turn to begin. */
const QUIET_TURNS = 3

/** Makes the gates of one schedule. */
export function makeGates(): Gates {
  const shut = new Map<number, Gate>()
  let nowMs = 0
  let made = 0
  let activity = 0

  const add = (gate: Omit<Gate, 'id'>): number => {
    const id = ++made
    activity += 1
    shut.set(id, { ...gate, id })
    return id
  }
  const remove = (id: number): void => {
    activity += 1
    shut.delete(id)
  }

  return {
    get nowMs() {
      return nowMs
    },
    setNow(ms) {
      nowMs = ms
    },
    open() {
      const open: Gate[] = []
      for (const gate of shut.values()) {
        if (gate.life.isDead) shut.delete(gate.id)
        else if (!gate.life.isPaused && gate.isPassable()) open.push(gate)
      }
      return open
    },
    pass: <T>(life: Life, options: PassOptions, work: () => Promise<T> | T): Promise<T> =>
      new Promise<T>((resolve, reject) => {
        if (life.isDead) return
        const refusal = options.refusal ?? (() => new Error(`${options.label} failed by the schedule`))
        const id = add({
          kind: options.kind,
          label: options.label,
          life,
          dueMs: null,
          endings: options.endings ?? ['done'],
          isPassable: options.isPassable ?? (() => true),
          async open(ending) {
            remove(id)
            if (ending === 'dies_before') return life.die()
            if (ending === 'refused') return life.whenAwake(() => reject(refusal()))
            let told: () => void
            try {
              if (ending === 'twice') await work()
              const result = await work()
              told = () => resolve(result)
            } catch (error) {
              told = () => reject(error instanceof Error ? error : new Error(String(error)))
            }
            if (ending === 'dies_after') return life.die()
            if (ending === 'pauses_after') life.pause()
            life.whenAwake(ending === 'unheard' ? () => reject(refusal()) : told)
          },
        })
      }),
    sleep: (life, ms, signal) =>
      new Promise((resolve, reject) => {
        if (life.isDead) return
        signal?.throwIfAborted()
        const onAbort = (): void => {
          if (life.isDead) return
          remove(id)
          life.whenAwake(() => reject(signal?.reason instanceof Error ? signal.reason : new Error('aborted')))
        }
        const id = add({
          kind: 'timer',
          label: `sleep ${String(ms)}`,
          life,
          dueMs: nowMs + ms,
          endings: ['done'],
          isPassable: () => true,
          open() {
            remove(id)
            signal?.removeEventListener('abort', onAbort)
            resolve()
            return Promise.resolve()
          },
        })
        signal?.addEventListener('abort', onAbort, { once: true })
      }),
    async settle() {
      for (let quiet = 0; quiet < QUIET_TURNS; quiet++) {
        const before = activity
        await nextTurn()
        if (activity !== before) quiet = -1
      }
    },
  }
}
