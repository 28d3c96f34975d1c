import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { extname, join } from 'node:path'
import { interruptibleSleep, NOTIFIED, type Clock } from '../../lib/clock.ts'
import type { Log } from '../../lib/log.ts'
import { EGRESS_PORT, type EgressEvent, type EgressOrder, type EgressRefusal, type EgressSettings } from './messages.ts'
import { makeNameTies, type NamedAddress, type NameTies } from './name-ties.ts'

/** The user of the egress process. It is outside the ranges that distributions and systemd give to users (60,578 to 61,183 is free). */
const EGRESS_USER = 60_998
const RESTART_PAUSE_MS = 500
/** How long the process may take to start, or to answer. It answers at once, unless the machine has no processor time for it. */
const ANSWER_LIMIT_MS = 30_000
/** How often the process is asked for an answer. */
const WATCH_INTERVAL_MS = 30_000

/** Judges connections of sandboxes by the names of their peers, in a process of its own. */
export type Egress = {
  /**
   * Judges the connections of a sandbox with the newest settings, once it has resolved. Null: they are not known yet,
   * so nothing passes. The process is started if there is none. If it ends, the connections of these sandboxes end and
   * new ones fail until it runs again. If it doesn't answer within 30 s, it is killed.
   */
  set(address: string, settings: EgressSettings | null): Promise<void>
  /** Ends the connections of a sandbox. An unknown address is fine. */
  remove(address: string): void
  /** Remembers a DNS answer for a sandbox. False if it has too many names. */
  tie(address: string, name: string, found: readonly NamedAddress[]): boolean
  /** Ends the process. */
  close(): Promise<void>
}

type Judged = { settings: EgressSettings | null; readonly ties: NameTies }

const SCRIPT = join(import.meta.dirname, '../perl/egress-listener.pl')
const PROGRAM = join(import.meta.dirname, `egress-process${extname(import.meta.filename)}`)

export type EgressOptions = {
  /** The path of the router's network namespace. */
  readonly namespace: string
  readonly clock: Clock
  readonly log: Log
  /** Is told of each connection that was cut, with the address of the sandbox. */
  readonly onRefused: (sandbox: string, refusal: EgressRefusal) => void
}

export function openEgress(options: EgressOptions): Egress {
  const { namespace, clock, log } = options
  const sandboxes = new Map<string, Judged>()
  const confirmations = new Map<number, () => void>()
  let lastId = 0
  let running: Promise<ChildProcess> | null = null
  let isClosing = false

  function ensureRunning(): Promise<ChildProcess> {
    running ??= start().catch((error: unknown) => {
      running = null
      throw error
    })
    return running
  }

  async function start(): Promise<ChildProcess> {
    const program = [process.execPath, '--max-old-space-size=512', PROGRAM]
    const child = spawn('perl', [SCRIPT, namespace, String(EGRESS_PORT), String(EGRESS_USER), ...program], {
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      serialization: 'advanced',
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '' },
      detached: true, // keeps Ctrl-C in the worker's terminal from it; it ends when the worker ends
    })
    child.on('message', (message) => {
      const event = message as EgressEvent // sent by egress-process.ts
      if (event.kind === 'confirmed') confirmations.get(event.id)?.()
      if (event.kind === 'refused') options.onRefused(event.sandbox, event.refusal)
      if (event.kind !== 'ask') return
      const names = sandboxes.get(event.sandbox)?.ties.namesOf(event.address) ?? []
      tell(child, { kind: 'names', id: event.id, names })
    })
    const ready = once(child, 'message') // the first message is `ready`
    const ended = once(child, 'exit').then(([code, signal]: unknown[]) => {
      throw new Error(`the egress process ended (${String(code ?? signal)})`)
    })
    ended.catch(() => undefined)
    await awaitAnswer(child, Promise.race([ready, ended]))
    const over = new AbortController()
    child.once('exit', () => {
      over.abort(NOTIFIED)
      running = null
      if (isClosing || sandboxes.size === 0) return
      log.error(
        { egress_pid: child.pid },
        'the egress process ended; connections of the sandboxes that need it fail until it runs again',
      )
      void restart()
    })
    for (const [address, { settings }] of sandboxes) tell(child, { kind: 'sandbox', address, settings })
    void watch(child, over.signal)
    return child
  }

  async function restart(): Promise<void> {
    while (!isClosing && sandboxes.size > 0) {
      try {
        await ensureRunning()
        return
      } catch (error) {
        log.error({ error }, 'the egress process could not be started; will retry')
        await clock.sleep(RESTART_PAUSE_MS)
      }
    }
  }

  /** Asks the process for an answer from time to time, until it has ended. */
  async function watch(child: ChildProcess, over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      await interruptibleSleep(clock, WATCH_INTERVAL_MS, over)
      await confirm(child)
    }
  }

  /** Kills the process if its answer doesn't come in time. The answer must end with the process. */
  async function awaitAnswer(child: ChildProcess, answer: Promise<unknown>): Promise<void> {
    const answered = new AbortController()
    void interruptibleSleep(clock, ANSWER_LIMIT_MS, answered.signal).then(() => {
      if (answered.signal.aborted) return
      log.error({ egress_pid: child.pid }, 'the egress process does not answer and is killed')
      child.kill('SIGKILL')
    })
    try {
      await answer
    } finally {
      answered.abort(NOTIFIED)
    }
  }

  /** Resolves once the process has carried out the orders before. If it ends, the next one gets them when it starts. */
  async function confirm(child: ChildProcess): Promise<void> {
    const id = ++lastId
    const { promise, resolve } = Promise.withResolvers<void>()
    confirmations.set(id, resolve)
    child.once('exit', resolve)
    if (child.connected) tell(child, { kind: 'confirm', id })
    else resolve()
    await awaitAnswer(child, promise)
    child.off('exit', resolve)
    confirmations.delete(id)
  }

  return {
    async set(address, settings) {
      const known = sandboxes.get(address)
      if (known === undefined) sandboxes.set(address, { settings, ties: makeNameTies(clock) })
      else known.settings = settings
      const child = await ensureRunning()
      tell(child, { kind: 'sandbox', address, settings })
      await confirm(child)
    },
    remove(address) {
      if (!sandboxes.delete(address)) return
      void running?.then((child) => {
        tell(child, { kind: 'sandbox', address, settings: null })
      })
    },
    tie: (address, name, found) => sandboxes.get(address)?.ties.add(name, found) ?? true,
    async close() {
      isClosing = true
      const child = await running?.catch(() => null)
      if (child === null || child === undefined || child.exitCode !== null || child.signalCode !== null) return
      const ended = once(child, 'exit')
      child.kill('SIGKILL')
      await ended
    },
  }
}

function tell(child: ChildProcess, order: EgressOrder): void {
  if (child.connected) child.send(order)
}
