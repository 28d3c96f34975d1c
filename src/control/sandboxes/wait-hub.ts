import type { SandboxId } from '../../domain/ids.ts'
import { SANDBOX_STATUSES, type SandboxStatus } from '../../domain/sandboxes/lifecycle.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { interruptibleSleep } from '../../lib/clock.ts'
import type { StatusWait } from '../../store/sandboxes/sandboxes.ts'
import type { ControlDeps, SandboxKey } from '../deps.ts'

/**
 * All waits of this process. A wake-up has the sandbox read, together with others that were woken; nothing is read for a
 * wait that nobody wakes but once in `CHECK_ALL_EVERY_MS`, by one statement for all. What is kept for a wait is small, because
 * there may be tens of thousands.
 */
export type WaitHub = {
  /**
   * Resolves with the sandbox as it is once `isMet` holds or `waitMs` are over, null when it can't be read any more, and
   * `left` when `signal` is aborted. Rejects when it can't be read at the start or at the end.
   */
  wait(
    wish: WaitCondition,
    how: { readonly waitMs: number; readonly signal: AbortSignal | null },
  ): Promise<Sandbox | null | 'left'>
  /**
   * The same with less memory: calls `onEnd` once, and the answer of this ends the wait early, `left`. A promise that is
   * awaited keeps every function between its maker and its reader, several KiB of a request.
   */
  watch(wish: WaitCondition, waitMs: number, onEnd: (end: WaitEnd) => void): () => void
}

/** How a wait ended: with the sandbox or its absence, early, or with what kept it from being read. */
export type WaitEnd = { readonly found: Sandbox | null | 'left' } | { readonly failure: unknown }

/** The statuses, or a run that is not the sandbox's latest any more, that end a wait. */
export type WaitCondition = SandboxKey & Pick<StatusWait, 'mask' | 'run_id'>

/** A lost wake-up costs a wait this much at most, in milliseconds. */
export const CHECK_ALL_EVERY_MS = 5_000
/** A wait ends this much after its budget at most: so many that end one by one cost one look at the list each. */
const TICK_MS = 20
/** From so many woken at once on, one statement asks which of them are over. */
const CHECK_IN_ONE_STATEMENT_MIN = 256
/** The most waits that one statement asks about. */
const CHECKED_AT_ONCE_MAX = 10_000

/** One object, because there are so many. */
type Waiting = SandboxKey &
  StatusWait & {
    /** Infinity once it is being ended. */
    deadlineMs: number
    readonly onEnd: (end: WaitEnd) => void
    isOver: boolean
  }

/**
 * The waits of one organization for one sandbox. Who has the id of a stranger's sandbox waits as well, until the first look
 * says that there is none: what is read for one organization must never reach the waits of another.
 */
type Group = { readonly waits: Waiting[]; readonly unsubscribe: () => void; isRead: boolean; isWoken: boolean }

type Deps = Pick<ControlDeps, 'clock' | 'notifications' | 'log' | 'readSandbox'> & {
  /** Which of these sandboxes are as somebody waits for them to be, or gone. */
  readonly met: (wishes: readonly StatusWait[]) => Promise<readonly SandboxId[]>
}

/** Makes the hub. It works only while somebody waits. */
export function makeWaitHub({ clock, notifications, log, readSandbox, met }: Deps): WaitHub {
  const groups = new Map<string, Group>()
  let woken = new Set<string>()
  let isFlushing = false
  let sleeper: { readonly untilMs: number; readonly interrupt: AbortController } | null = null

  function add(waiting: Waiting): void {
    const key = keyOf(waiting)
    const group = groups.get(key)
    if (group !== undefined) {
      group.waits.push(waiting)
      return
    }
    const unsubscribe = notifications.subscribe(`sandbox:${waiting.id}`, () => {
      woken.add(key)
      if (!isFlushing) setImmediate(flush)
      isFlushing = true
    })
    groups.set(key, { waits: [waiting], unsubscribe, isRead: false, isWoken: false })
  }

  function end(waiting: Waiting, how: WaitEnd): void {
    if (waiting.isOver) return
    waiting.isOver = true
    const key = keyOf(waiting)
    const group = groups.get(key)
    if (group !== undefined) {
      group.waits.splice(group.waits.indexOf(waiting), 1)
      if (group.waits.length === 0) {
        group.unsubscribe()
        groups.delete(key)
      }
    }
    if (groups.size === 0) sleeper?.interrupt.abort(new Error('nobody waits'))
    waiting.onEnd(how)
  }

  function flush(): void {
    isFlushing = false
    const keys = [...woken]
    woken = new Set()
    if (keys.length <= CHECK_IN_ONE_STATEMENT_MIN) for (const key of keys) look(key)
    else void lookAmong(keys) // it never rejects: its failures are logged
  }

  function look(key: string): void {
    const group = groups.get(key)
    if (group === undefined) return
    group.isWoken = true
    if (!group.isRead) void lookWhileWoken(group) // it never rejects: its failures are logged
  }

  async function lookWhileWoken(group: Group): Promise<void> {
    group.isRead = true
    try {
      for (let first = group.waits[0]; group.isWoken && first !== undefined; first = group.waits[0]) {
        group.isWoken = false
        const sandbox = await readSandbox(first)
        for (const waiting of group.waits.slice()) {
          if (isMet(waiting, sandbox)) end(waiting, { found: sandbox })
        }
      }
    } catch (error) {
      log.debug({ error }, 'a sandbox that is waited for could not be read; it is looked at again')
    } finally {
      group.isRead = false
    }
  }

  async function lookAmong(keys: Iterable<string>): Promise<void> {
    const wishes = [...keys].flatMap((key) => groups.get(key)?.waits ?? [])
    try {
      for (let from = 0; from < wishes.length; from += CHECKED_AT_ONCE_MAX) {
        const asked = wishes.slice(from, from + CHECKED_AT_ONCE_MAX)
        const over = new Set(await met(asked))
        for (const key of new Set(asked.filter(({ id }) => over.has(id)).map(keyOf))) look(key)
      }
    } catch (error) {
      log.debug({ error }, 'what is waited for could not be looked at; it is tried again')
    }
  }

  async function expire(waiting: Waiting): Promise<void> {
    waiting.deadlineMs = Number.POSITIVE_INFINITY
    try {
      const sandbox = await readSandbox(waiting)
      end(waiting, { found: sandbox })
    } catch (failure) {
      end(waiting, { failure })
    }
  }

  /** Ends the waits whose budget is over, and looks at all from time to time, until nobody waits. */
  async function keepTime(): Promise<void> {
    let lookAtMs = clock.monotonicMs() + CHECK_ALL_EVERY_MS
    while (groups.size > 0) {
      const nowMs = clock.monotonicMs()
      let nextMs = lookAtMs
      for (const { waits } of groups.values()) for (const { deadlineMs } of waits) nextMs = Math.min(nextMs, deadlineMs)
      sleeper = { untilMs: nextMs, interrupt: new AbortController() }
      await interruptibleSleep(clock, Math.max(TICK_MS, nextMs - nowMs), sleeper.interrupt.signal)
      const passedMs = clock.monotonicMs()
      const over = [...groups.values()].flatMap(({ waits }) => waits.filter(({ deadlineMs }) => deadlineMs <= passedMs))
      for (const waiting of over) void expire(waiting) // it never rejects
      if (passedMs < lookAtMs) continue
      await lookAmong(groups.keys())
      lookAtMs = clock.monotonicMs() + CHECK_ALL_EVERY_MS
    }
    sleeper = null
  }

  /** The first look, after the subscription, so that no change falls between. */
  async function begin(waiting: Waiting, waitMs: number): Promise<void> {
    try {
      const sandbox = await readSandbox(waiting)
      if (isMet(waiting, sandbox) || waitMs <= 0) end(waiting, { found: sandbox })
    } catch (failure) {
      end(waiting, { failure })
    }
    if (waiting.isOver) return
    if (sleeper === null)
      void keepTime() // it never rejects: what it does is caught
    else if (waiting.deadlineMs < sleeper.untilMs) sleeper.interrupt.abort(new Error('an earlier end'))
  }

  function watch({ org_id, id, mask, run_id }: WaitCondition, waitMs: number, onEnd: Waiting['onEnd']): () => void {
    const deadlineMs = clock.monotonicMs() + waitMs
    const waiting: Waiting = { org_id, id, mask, run_id, deadlineMs, onEnd, isOver: false }
    add(waiting)
    void begin(waiting, waitMs) // it never rejects: a failure ends the wait
    return () => {
      end(waiting, { found: 'left' })
    }
  }

  return {
    watch,
    wait(wish, { waitMs, signal }) {
      const { promise, resolve, reject } = Promise.withResolvers<Sandbox | null | 'left'>()
      const leave = watch(wish, waitMs, (how) => {
        signal?.removeEventListener('abort', leave)
        if ('failure' in how) reject(how.failure)
        else resolve(how.found)
      })
      if (signal?.aborted === true) leave()
      else signal?.addEventListener('abort', leave, { once: true })
      return promise
    },
  }
}

function keyOf({ org_id, id }: SandboxKey): string {
  return `${org_id} ${id}`
}

/** A bit for each status, in the order of the lifecycle's list. */
export function statusMask(statuses: readonly SandboxStatus[]): number {
  return statuses.reduce((mask, status) => mask | (1 << SANDBOX_STATUSES.indexOf(status)), 0)
}

function isMet({ mask, run_id }: StatusWait, sandbox: Sandbox | null): boolean {
  if (sandbox === null || (run_id !== null && sandbox.run_id !== run_id)) return true
  return maskHasStatus(mask, sandbox.status)
}

/** Whether a mask has the bit of a status. */
export function maskHasStatus(mask: number, status: SandboxStatus): boolean {
  return (mask & (1 << SANDBOX_STATUSES.indexOf(status))) !== 0
}
