import { SANDBOX_STATUSES, type SandboxStatus } from '../../../domain/sandboxes/lifecycle.ts'
import type { SandboxKey, SandboxSummary } from '../../../domain/sandboxes/sandbox.ts'
import { interruptibleSleep } from '../../../lib/clock.ts'
import { findSatisfied, type FoundSandbox, type StatusWait } from '../../../store/sandboxes/sandboxes.ts'
import type { BaseDeps } from '../../deps.ts'
import { sandboxTopic } from '../../topics.ts'
import type { SandboxReader } from '../read-sandboxes.ts'

/**
 * All waits of this process. After a notification about a sandbox, the hub reads the sandbox, in one statement with
 * other notified sandboxes. Without a notification, one statement checks all waits every `CHECK_ALL_EVERY_MS`. Each
 * wait needs little memory, because there may be tens of thousands. No large specification is read: whoever waits reads it at the end.
 */
export type WaitHub = {
  /**
   * Resolves with the sandbox once the condition is met or `waitMs` has passed. Resolves with null when the sandbox no
   * longer exists, and with `left` when `signal` is aborted. Rejects when the sandbox can't be read at the start of the
   * wait or at its end.
   */
  wait(condition: WaitCondition, how: WaitOptions): Promise<FoundSandbox | null | 'left'>
  /**
   * Like `wait`, but with less memory. It calls `onEnd` once. The returned function ends the wait early, with `left`.
   * An awaited promise would keep all functions that await it in memory: several KiB per request.
   */
  watch(condition: WaitCondition, waitMs: number, onEnd: (end: WaitEnd) => void): () => void
}

export type WaitOptions = {
  readonly waitMs: number
  readonly signal: AbortSignal | null
  /** Whether the caller knows that the condition is not met at this moment. The wait then begins without a read. Absent: no. */
  readonly isUnmet?: boolean
}

/** How a wait ended: with the sandbox, null for a deleted sandbox, `left` for an early end, or the error of a read. */
export type WaitEnd = { readonly found: FoundSandbox | null | 'left' } | { readonly failure: unknown }

/**
 * The condition that ends a wait: the sandbox has a status in `mask` or, with `run_id`, its latest run is another one.
 */
export type WaitCondition = SandboxKey & Pick<StatusWait, 'mask' | 'run_id'>

/** How often all waits are checked, in milliseconds. A lost notification delays a wait by this much at most. */
export const CHECK_ALL_EVERY_MS = 5_000
/**
 * The least time between two scans of all waits for those whose time is over, in milliseconds. A wait may end this
 * late. In return, waits that end shortly after one another share a scan.
 */
const TICK_MS = 20
/**
 * If more sandboxes than this are notified at once, one statement first finds those that end a wait. Only these are
 * read.
 */
const CHECK_IN_ONE_STATEMENT_MIN = 256
/** The maximum number of waits that one statement checks. */
const CHECKED_AT_ONCE_MAX = 10_000

/** An open wait. All its data is in one object to save memory, because there may be tens of thousands. */
type Waiting = SandboxKey &
  StatusWait & {
    /** When the wait's time is over, by the monotonic clock. Infinity once the last read of the wait has begun. */
    deadlineMs: number
    readonly onEnd: (end: WaitEnd) => void
    isOver: boolean
  }

/**
 * The waits of one organization for one sandbox. A caller may name another organization's sandbox by its id, which only
 * the first read finds out. Each group therefore belongs to one organization, so that its reads never reach another
 * organization's waits.
 */
type Group = { readonly waits: Waiting[]; readonly unsubscribe: () => void; isBeingRead: boolean; isNotified: boolean }

type Deps = Pick<BaseDeps, 'db' | 'clock' | 'notifications' | 'log'> & Pick<SandboxReader, 'readFound'>

/** Makes the hub. Its timer runs only while waits are open. */
export function makeWaitHub({ db, clock, notifications, log, readFound }: Deps): WaitHub {
  const groups = new Map<string, Group>()
  let notified = new Set<string>()
  let isFlushing = false
  let sleeper: { readonly untilMs: number; readonly interrupt: AbortController } | null = null

  function add(waiting: Waiting): void {
    const key = keyOf(waiting)
    const group = groups.get(key)
    if (group !== undefined) {
      group.waits.push(waiting)
      return
    }
    const unsubscribe = notifications.subscribe(sandboxTopic(waiting.id), () => {
      notified.add(key)
      if (!isFlushing) setImmediate(flush)
      isFlushing = true
    })
    groups.set(key, { waits: [waiting], unsubscribe, isBeingRead: false, isNotified: false })
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
    const keys = [...notified]
    notified = new Set()
    if (keys.length <= CHECK_IN_ONE_STATEMENT_MIN) for (const key of keys) readSoon(key)
    else void checkTogether(keys) // it never rejects: its failures are logged
  }

  function readSoon(key: string): void {
    const group = groups.get(key)
    if (group === undefined) return
    group.isNotified = true
    if (!group.isBeingRead) void readWhileNotified(group) // it never rejects: its failures are logged
  }

  async function readWhileNotified(group: Group): Promise<void> {
    group.isBeingRead = true
    try {
      for (let first = group.waits[0]; group.isNotified && first !== undefined; first = group.waits[0]) {
        group.isNotified = false
        const sandbox = await readFound(first)
        for (const waiting of group.waits.slice()) {
          if (isMet(waiting, sandbox)) end(waiting, { found: sandbox })
        }
      }
    } catch (error) {
      log.debug({ error }, 'could not read a sandbox that requests wait for; will retry')
    } finally {
      group.isBeingRead = false
    }
  }

  async function checkTogether(keys: Iterable<string>): Promise<void> {
    const waits = [...keys].flatMap((key) => groups.get(key)?.waits ?? [])
    try {
      for (let from = 0; from < waits.length; from += CHECKED_AT_ONCE_MAX) {
        const batch = waits.slice(from, from + CHECKED_AT_ONCE_MAX)
        const over = new Set(await db.asSystem((q) => findSatisfied(q, batch)))
        for (const key of new Set(batch.filter(({ id }) => over.has(id)).map(keyOf))) readSoon(key)
      }
    } catch (error) {
      log.debug({ error }, 'could not check the waits of this process; will retry')
    }
  }

  async function expire(waiting: Waiting): Promise<void> {
    waiting.deadlineMs = Number.POSITIVE_INFINITY
    try {
      const sandbox = await readFound(waiting)
      end(waiting, { found: sandbox })
    } catch (failure) {
      end(waiting, { failure })
    }
  }

  /** Ends the waits whose time is over, and checks all waits every `CHECK_ALL_EVERY_MS`, until no wait is open. */
  async function keepTime(): Promise<void> {
    let checkAtMs = clock.monotonicMs() + CHECK_ALL_EVERY_MS
    while (groups.size > 0) {
      const nowMs = clock.monotonicMs()
      let nextMs = checkAtMs
      for (const { waits } of groups.values()) for (const { deadlineMs } of waits) nextMs = Math.min(nextMs, deadlineMs)
      sleeper = { untilMs: nextMs, interrupt: new AbortController() }
      await interruptibleSleep(clock, Math.max(TICK_MS, nextMs - nowMs), sleeper.interrupt.signal)
      const passedMs = clock.monotonicMs()
      const over = [...groups.values()].flatMap(({ waits }) => waits.filter(({ deadlineMs }) => deadlineMs <= passedMs))
      for (const waiting of over) void expire(waiting) // it never rejects
      if (passedMs < checkAtMs) continue
      await checkTogether(groups.keys())
      checkAtMs = clock.monotonicMs() + CHECK_ALL_EVERY_MS
    }
    sleeper = null
  }

  async function begin(waiting: Waiting, waitMs: number, isUnmet: boolean): Promise<void> {
    if (!isUnmet || waitMs <= 0) await readFirst(waiting, waitMs)
    if (waiting.isOver) return
    if (sleeper === null)
      void keepTime() // it never rejects: it catches its failures
    else if (waiting.deadlineMs < sleeper.untilMs) sleeper.interrupt.abort(new Error('an earlier end'))
  }

  /**
   * Reads the sandbox of a new wait, and ends the wait if its condition is already met. The subscription comes before
   * this read, so that a change between the two is not missed.
   */
  async function readFirst(waiting: Waiting, waitMs: number): Promise<void> {
    try {
      const sandbox = await readFound(waiting)
      if (isMet(waiting, sandbox) || waitMs <= 0) end(waiting, { found: sandbox })
    } catch (failure) {
      end(waiting, { failure })
    }
  }

  function open(
    { org_id, id, mask, run_id }: WaitCondition,
    { waitMs, isUnmet = false }: Pick<WaitOptions, 'waitMs' | 'isUnmet'>,
    onEnd: Waiting['onEnd'],
  ): () => void {
    const deadlineMs = clock.monotonicMs() + waitMs
    const waiting: Waiting = { org_id, id, mask, run_id, deadlineMs, onEnd, isOver: false }
    add(waiting)
    void begin(waiting, waitMs, isUnmet) // it never rejects: a failure ends the wait
    return () => {
      end(waiting, { found: 'left' })
    }
  }

  return {
    watch: (condition, waitMs, onEnd) => open(condition, { waitMs }, onEnd),
    wait(condition, { signal, ...options }) {
      const { promise, resolve, reject } = Promise.withResolvers<FoundSandbox | null | 'left'>()
      const leave = open(condition, options, (how) => {
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

/** A mask with one bit for each status, in the order of `SANDBOX_STATUSES`. */
export function statusMask(statuses: readonly SandboxStatus[]): number {
  return statuses.reduce((mask, status) => mask | (1 << SANDBOX_STATUSES.indexOf(status)), 0)
}

function isMet({ mask, run_id }: StatusWait, sandbox: SandboxSummary | null): boolean {
  if (sandbox === null || (run_id !== null && sandbox.run_id !== run_id)) return true
  return maskHasStatus(mask, sandbox.status)
}

/** Whether a mask has the bit of a status. */
export function maskHasStatus(mask: number, status: SandboxStatus): boolean {
  return (mask & (1 << SANDBOX_STATUSES.indexOf(status))) !== 0
}
