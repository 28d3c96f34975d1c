/**
 * The worker's loop: it tells the control plane all that it sees, takes in all that is wanted, and makes the one into
 * the other. It keeps no truth: what it sees comes from the driver at each sync, what is wanted from each answer.
 */
import {
  WORKER_PROTOCOL_VERSION,
  type StreamTicket,
  type SyncAnswer,
  type SyncRequest,
  type WantedRun,
} from '../contract/worker-protocol.ts'
import { decide, type WorkerAction } from '../domain/decide.ts'
import type { RunId, SandboxId, WorkerId } from '../domain/ids.ts'
import { SELF_FENCE_MS } from '../domain/lease.ts'
import { interruptibleSleep, type Clock } from '../lib/clock.ts'
import type { Log } from '../lib/log.ts'
import type { ControlPlane } from './control-plane.ts'
import { StartError, type Driver, type Probe } from './drivers/driver.ts'
import { serveStream } from './streams.ts'

export type AgentDeps = {
  readonly worker_id: WorkerId
  readonly driver: Driver
  readonly controlPlane: ControlPlane
  readonly clock: Clock
  readonly log: Log
  /** Whether a worker that can't sync destroys its runs. Off only where control plane and worker are one process. */
  readonly fencesItself: boolean
}

/** How long after a failed sync the next is tried. */
const RETRY_MS = 500
/** How often the machine's capacity and the driver's abilities are looked at anew. */
const PROBE_MS = 15_000
/** How long a shutdown waits for steps that are under way. */
const SETTLE_MS = 3_000
/** One that is held and one with fresh news. */
const SYNCS_AT_ONCE = 2

/** Runs until `signal`; rejects when the driver can't work on this machine. Sandboxes go on running afterwards. */
export async function runAgent(deps: AgentDeps, signal: AbortSignal): Promise<void> {
  const agent = makeAgent(deps, await deps.driver.probe(), signal)
  const unwatch = deps.driver.watch(agent.noteNews)
  try {
    await Promise.all([agent.keepSyncing(), agent.keepProbing(), agent.keepFenced()])
  } finally {
    unwatch()
    await agent.settle()
  }
}

function makeAgent(deps: AgentDeps, firstProbe: Probe, signal: AbortSignal) {
  const { driver, log, clock } = deps
  let probe = firstProbe
  let seq = 0
  let appliedSeq = 0
  let inFlight = 0
  let hasNews = true
  let wanted: readonly WantedRun[] | null = null
  let wantedVersion: string | null = null
  let discards: readonly SandboxId[] = []
  let lastSyncMs = clock.monotonicMs()
  let sleeper = new AbortController()
  const busy = new Map<RunId | SandboxId, { readonly work: Promise<void>; readonly abort: AbortController }>()
  const dialled = new Set<string>()

  const wakeUp = (): void => {
    sleeper.abort()
  }
  const noteNews = (): void => {
    hasNews = true
    wakeUp()
  }

  const report = async (): Promise<SyncRequest> => ({
    protocol: WORKER_PROTOCOL_VERSION,
    worker_id: deps.worker_id,
    seq: ++seq,
    known_version: wantedVersion,
    capacity: probe.capacity,
    driver: probe.report,
    seen: await driver.list(),
    stored: await driver.listStored(),
  })

  const syncOnce = async (): Promise<void> => {
    try {
      const request = await report()
      const answer = await deps.controlPlane.sync(request, signal)
      lastSyncMs = clock.monotonicMs()
      if (request.seq < appliedSeq) return
      appliedSeq = request.seq
      await apply(answer)
    } catch (error) {
      if (signal.aborted) return
      log.warn({ error }, 'a sync with the control plane failed; it is tried again')
      await interruptibleSleep(clock, RETRY_MS, signal)
    }
  }

  const apply = async (answer: SyncAnswer): Promise<void> => {
    if (answer.wanted !== null) {
      wanted = answer.wanted
      wantedVersion = answer.wanted_version
    }
    for (const ticket of answer.streams) dial(ticket)
    for (const ticket of dialled) if (!answer.streams.some((stream) => stream.ticket === ticket)) dialled.delete(ticket)
    discards = answer.discard
    await act()
  }

  const act = async (): Promise<void> => {
    if (wanted === null) return
    const orders = new Map(wanted.map((run) => [run.run_id, run]))
    const held = await driver.list()
    for (const sandbox of discards) {
      if (held.every((run) => run.sandbox_id !== sandbox)) begin(sandbox, () => driver.discard(sandbox))
    }
    for (const action of decide(wanted, held)) {
      const order = orders.get(action.run_id)
      if (action.kind !== 'start') busy.get(action.run_id)?.abort.abort(new Error('the run is no longer wanted'))
      begin(action.run_id, (abort) => perform(driver, action, order, abort))
    }
  }

  /** Starts work on a run or sandbox unless some is under way; its end is news. */
  const begin = (id: RunId | SandboxId, start: (abort: AbortSignal) => Promise<void>): void => {
    if (busy.has(id)) return
    const abort = new AbortController()
    const work = start(abort.signal)
      .catch((error: unknown) => {
        if (error instanceof StartError)
          log.info({ id, reason: error.reason, message: error.message }, 'a start failed')
        else log.warn({ error, id }, 'a step of the worker failed; what is seen next decides')
      })
      .then(async () => {
        busy.delete(id)
        noteNews()
        if (!signal.aborted) await act()
      })
      .catch((error: unknown) => {
        log.error({ error, id }, 'the worker could not decide its next step')
      })
    busy.set(id, { work, abort })
  }

  const dial = ({ ticket, run_id }: StreamTicket): void => {
    if (dialled.has(ticket)) return
    dialled.add(ticket)
    serveStream({ controlPlane: deps.controlPlane, driver }, { ticket, run_id }, signal).catch((error: unknown) => {
      log.warn({ error, run_id }, 'a stream could not be opened')
    })
  }

  return {
    noteNews,
    async keepSyncing(): Promise<void> {
      while (!signal.aborted) {
        sleeper = new AbortController()
        const isIdle = inFlight === 0
        if (isIdle || (hasNews && inFlight < SYNCS_AT_ONCE)) {
          hasNews = false
          inFlight += 1
          syncOnce()
            .finally(() => {
              inFlight -= 1
              wakeUp()
            })
            .catch((error: unknown) => {
              log.error({ error }, 'a sync ended in a way that it should not')
            })
          continue
        }
        await interruptibleSleep(clock, PROBE_MS, AbortSignal.any([sleeper.signal, signal]))
      }
    },
    async keepProbing(): Promise<void> {
      while (!signal.aborted) {
        await interruptibleSleep(clock, PROBE_MS, signal)
        if (signal.aborted) return
        try {
          probe = await driver.probe()
        } catch (error) {
          log.warn({ error }, 'the driver can no longer work on this machine')
        }
      }
    },
    async keepFenced(): Promise<void> {
      while (!signal.aborted && deps.fencesItself) {
        await interruptibleSleep(clock, 1_000, signal)
        if (clock.monotonicMs() - lastSyncMs < SELF_FENCE_MS) continue
        if ((wanted?.length ?? 0) > 0)
          log.error({}, 'no sync for too long: this worker destroys its runs before they are called lost')
        wanted = []
        wantedVersion = null
        await act()
      }
    },
    /** Lets what is under way come to its end; a start that takes longer is begun again by the next life. */
    async settle(): Promise<void> {
      const all = Promise.all([...busy.values()].map(({ work }) => work))
      const settled = new AbortController()
      await Promise.race([all, interruptibleSleep(clock, SETTLE_MS, settled.signal)])
      settled.abort()
    },
  }
}

async function perform(
  driver: Driver,
  action: WorkerAction,
  order: WantedRun | undefined,
  abort: AbortSignal,
): Promise<void> {
  switch (action.kind) {
    case 'start':
      if (order !== undefined) await driver.start(order, abort)
      return
    case 'stop':
      await driver.stop(action.run_id, action.grace_ms)
      return
    case 'remove':
      await driver.remove(action.run_id)
  }
}
