/**
 * Delivers events to webhooks. One process does it, the leader, in one line of work: it stores results, turns new events into deliveries,
 * reads what is to be sent, and sends. No read therefore overlaps with the storing of a result, and nothing is sent twice by one leader.
 * After a crash, what was sent and not stored is sent again: of each lane at most the latest delivery.
 */
import type { BaseDeps, LeaderFence } from '../../control/deps.ts'
import { recordEvent } from '../../control/events/record-event.ts'
import { WEBHOOKS_TOPIC } from '../../control/topics.ts'
import { openTarget, sendMessage, type OpenTarget, type WebhookSender } from '../../control/webhooks/send-message.ts'
import { factsOf } from '../../control/webhooks/webhooks.ts'
import type { OrgId, WebhookId } from '../../domain/ids.ts'
import { SYSTEM_ACTOR } from '../../domain/orgs/caller.ts'
import { judgeAttempt } from '../../domain/webhooks/judge-attempt.ts'
import { renderMessage } from '../../domain/webhooks/message.ts'
import type { RetrySchedule } from '../../domain/webhooks/retry-schedule.ts'
import type { Attempt, PauseReason } from '../../domain/webhooks/webhook.ts'
import { interruptibleSleep, NOTIFIED, waitAtMost } from '../../lib/clock.ts'
import * as deliveries from '../../store/webhooks/deliveries.ts'
import * as webhooks from '../../store/webhooks/webhooks.ts'
import { makeEndpointQueue, type EndpointQueue } from './endpoint-queue.ts'
import { makeDeliveryRecorder } from './record-deliveries.ts'

/** Learns about attempts, for metrics. `delayMs`: from the event to its delivery. */
export type DeliveryObserver = {
  readonly onAttempt: (attempt: {
    readonly result: 'delivered' | 'retried' | 'failed'
    readonly delayMs: number | null
  }) => void
}

export type DeliverDeps = Pick<BaseDeps, 'db' | 'clock' | 'log' | 'random' | 'uuids' | 'seal' | 'notifications'> & {
  readonly webhooks: Pick<WebhookSender, 'http'>
  readonly schedule: RetrySchedule
  readonly fence: LeaderFence
  readonly observer?: DeliveryObserver
}

/** How often new events are looked for. The database is asked less often while there are no webhooks. */
const LOOK_MS = 50
const IDLE_LOOK_MS = 1_000
/** Results that come within this time are stored together. */
const SETTLE_MS = 10
/** How often all work is looked for, whether or not a notification came. */
const FIND_MS = 30_000
const RETRY_MS = 1_000
/** How long the end waits for messages that are under way. It is less than another process waits before it leads. */
const FINISH_MS = 3_000
/** How many messages are under way at the same time, in all and for one organization. */
const IN_FLIGHT_ALL = 1_024
const IN_FLIGHT_ORG = 64
/** How many deliveries are held in memory, in all and of one webhook. */
const HELD_ALL = 20_000
const HELD_EACH = 128

/** The attempt to deliver an event that was deleted since. */
const EVENT_IS_GONE: Attempt = {
  duration_ms: null,
  reply_status: null,
  reply_body: null,
  error: 'the event is no longer kept',
}

type Endpoint = {
  readonly id: WebhookId
  readonly queue: EndpointQueue
  /** Null: it is to be read. */
  target: (OpenTarget & { readonly org_id: OrgId }) | null
}

type Finished = {
  readonly endpoint: Endpoint
  readonly delivery: deliveries.WaitingDelivery
  readonly result: deliveries.AttemptResult
  readonly pause: PauseReason | null
}

/** Delivers until the signal aborts, and then waits a little for what is under way. */
export async function deliverWebhooks(deps: DeliverDeps, signal: AbortSignal): Promise<void> {
  const { db, clock, log } = deps
  const look = makeDeliveryRecorder(deps)
  const endpoints = new Map<WebhookId, Endpoint>()
  const inFlight = new Map<OrgId, number>()
  const sending = new Set<Promise<void>>()
  const cut = new AbortController()
  let finished: Finished[] = []
  let [lookAtMs, findAtMs] = [0, 0]
  let sleeper = new AbortController()
  const wake = (): void => sleeper.abort(NOTIFIED)

  const endpointOf = (id: WebhookId): Endpoint => {
    const known = endpoints.get(id) ?? { id, queue: makeEndpointQueue(id), target: null }
    endpoints.set(id, known)
    return known
  }

  /** Looks for everything that can be sent, with settings as they are now. */
  async function findWork(): Promise<void> {
    findAtMs = clock.monotonicMs() + FIND_MS
    for (const endpoint of endpoints.values()) {
      endpoint.queue.forget()
      endpoint.target = null
    }
    for (const id of await db.asSystem((q) => deliveries.webhooksWithWork(q))) endpointOf(id)
  }

  async function lookForEvents(): Promise<void> {
    const found = await look()
    lookAtMs = clock.monotonicMs() + (found.hasMore ? 0 : found.hasWebhooks ? LOOK_MS : IDLE_LOOK_MS)
    for (const id of found.webhooks) endpointOf(id).queue.expectMore()
  }

  /** Null: the row can't be opened, which must not stop the deliveries to others. */
  function open(row: webhooks.WebhookTarget): Endpoint['target'] {
    try {
      return { ...openTarget(deps, row), org_id: row.org_id }
    } catch (error) {
      log.error({ error, webhook: row.id }, 'the secret or the URL of a webhook is unusable, so nothing is sent to it')
      return null
    }
  }

  async function readTargets(): Promise<void> {
    const unknown = [...endpoints.values()].filter(({ target }) => target === null).map(({ id }) => id)
    if (unknown.length === 0) return
    const found = await db.asSystem((q) => webhooks.targets(q, unknown))
    const byId = new Map(found.map((target) => [target.id, target]))
    for (const id of unknown) {
      const row = byId.get(id)
      const endpoint = endpointOf(id)
      endpoint.target = row === undefined ? null : open(row)
      if (endpoint.target === null && endpoint.queue.sending === 0) endpoints.delete(id) // it is paused, deleted or unusable
    }
  }

  async function readDeliveries(): Promise<void> {
    await readTargets()
    const size = Math.min(HELD_EACH, Math.max(2, Math.floor(HELD_ALL / Math.max(1, endpoints.size))))
    const wanted = [...endpoints.values()].flatMap(({ target, queue }) => {
      const one = target === null ? null : queue.wanted(size)
      return one === null ? [] : [one]
    })
    if (wanted.length > 0) {
      const read = await db.asSystem((q) => deliveries.waiting(q, wanted))
      const byWebhook = Map.groupBy(read, ({ webhook_id }) => webhook_id)
      for (const { webhook_id, count } of wanted)
        endpoints.get(webhook_id)?.queue.add(byWebhook.get(webhook_id) ?? [], count)
    }
    for (const { id, queue, target } of endpoints.values()) if (target !== null && queue.isIdle) endpoints.delete(id)
  }

  async function send(endpoint: Endpoint, target: OpenTarget, delivery: deliveries.WaitingDelivery): Promise<void> {
    const { webhook_id, id, event } = delivery
    const tried_since = delivery.tried_since ?? clock.now()
    const { attempt, retry_after_ms } =
      event === null
        ? { attempt: EVENT_IS_GONE, retry_after_ms: null }
        : await sendMessage({ clock, ...deps.webhooks }, target, { id, body: renderMessage(event), signal: cut.signal })
    const at = clock.now()
    const random = deps.random.bytes(4).readUInt32BE() / 0xffff_ffff
    const judged = judgeAttempt(deps.schedule, { ...attempt, retry_after_ms, tried_since, at }, random)
    const verdict = event === null ? ({ status: 'failed', next_attempt_at: null, pause: null } as const) : judged
    const { status, next_attempt_at, pause } = verdict
    const result = { ...attempt, webhook_id, id, status, tried_since, at, next_attempt_at }
    finished.push({ endpoint, delivery: { ...delivery, tried_since }, result, pause })
    wake()
  }

  /** Sends what may be sent now, one delivery of each endpoint in turn. */
  function sendAll(): void {
    const nowMs = clock.now().getTime()
    for (let hasSent = true; hasSent;) {
      hasSent = false
      for (const endpoint of endpoints.values()) {
        const { target, queue } = endpoint
        if (target === null || sending.size >= IN_FLIGHT_ALL) continue
        const ofOrg = inFlight.get(target.org_id) ?? 0
        const delivery = ofOrg >= IN_FLIGHT_ORG ? null : queue.next(nowMs)
        if (delivery === null) continue
        hasSent = true
        inFlight.set(target.org_id, ofOrg + 1)
        const one = send(endpoint, target, delivery)
          .catch((error: unknown) => {
            if (!cut.signal.aborted) log.error({ error, webhook: endpoint.id }, 'a delivery of a webhook broke off')
          })
          .finally(() => {
            sending.delete(one)
            const left = (inFlight.get(target.org_id) ?? 1) - 1
            if (left === 0) inFlight.delete(target.org_id)
            else inFlight.set(target.org_id, left)
          })
        sending.add(one)
      }
    }
  }

  async function settle(): Promise<void> {
    const batch = finished
    if (batch.length === 0) return
    finished = []
    try {
      await storeResults(deps, batch)
    } catch (error) {
      finished = [...batch, ...finished]
      throw error
    }
    for (const { endpoint, delivery, result, pause } of batch) {
      const hasFailed = result.status !== 'delivered'
      endpoint.queue.settle(delivery, { retryAt: result.next_attempt_at, hasFailed })
      const resultName = hasFailed ? (result.status === 'failed' ? 'failed' : 'retried') : 'delivered'
      const delayMs =
        hasFailed || delivery.event === null ? null : result.at.getTime() - delivery.event.timestamp.getTime()
      deps.observer?.onAttempt({ result: resultName, delayMs })
      if (pause === null) continue
      endpoint.queue.forget()
      endpoint.target = null
    }
  }

  const unsubscribe = deps.notifications.subscribe(WEBHOOKS_TOPIC, () => {
    findAtMs = 0
    lookAtMs = 0
    wake()
  })
  try {
    while (!signal.aborted) {
      sleeper = new AbortController()
      const startedMs = clock.monotonicMs()
      try {
        await settle()
        if (clock.monotonicMs() >= findAtMs) await findWork()
        if (clock.monotonicMs() >= lookAtMs) await lookForEvents()
        await readDeliveries()
        sendAll()
      } catch (error) {
        if (signal.aborted) break
        log.warn({ error }, 'webhooks could not be served; will retry')
        findAtMs = 0 // what an uncertain commit did is read again
        await interruptibleSleep(clock, RETRY_MS, signal)
      }
      const restMs = Math.max(0, nextStepMs() - clock.monotonicMs())
      await interruptibleSleep(clock, restMs, sleeper.signal, signal)
      await interruptibleSleep(clock, Math.max(0, startedMs + SETTLE_MS - clock.monotonicMs()), signal)
    }
  } finally {
    unsubscribe()
    const all = Promise.all(sending)
    await waitAtMost(clock, FINISH_MS, all)
    cut.abort(new Error('the process delivers no longer'))
    await all
    await settle().catch((error: unknown) => {
      log.warn({ error }, 'the last results of webhooks could not be stored; these deliveries are sent again')
    })
  }

  /** When there is something to do, unless a result or a notification comes before. */
  function nextStepMs(): number {
    const nowMs = clock.now().getTime()
    let leastMs = Number.POSITIVE_INFINITY
    for (const { queue } of endpoints.values()) leastMs = Math.min(leastMs, queue.dueAtMs(nowMs) ?? leastMs)
    return Math.min(lookAtMs, findAtMs, clock.monotonicMs() + leastMs - nowMs)
  }
}

/** Stores results, and pauses the webhooks that they end. */
async function storeResults(deps: DeliverDeps, finished: readonly Finished[]): Promise<void> {
  const pauses = new Map<WebhookId, PauseReason>()
  for (const { endpoint, pause } of finished) if (pause !== null) pauses.set(endpoint.id, pause)
  await deps.db.transaction('system', async (tx) => {
    await deps.fence(tx)
    await deliveries.recordResults(
      tx,
      finished.map(({ result }) => result),
    )
    for (const [id, reason] of pauses) {
      const paused = await webhooks.pause(tx, { id, reason, now: deps.clock.now() })
      if (paused === null) continue
      const payload = { ...factsOf({ id, url: paused.url }), reason }
      const by = { org_id: paused.org_id, actor: SYSTEM_ACTOR }
      await recordEvent(deps, tx, { ...by, event_type: 'webhook_paused', payload })
    }
  })
}
