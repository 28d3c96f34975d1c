import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { asId, type EventId, type WebhookId } from '../../../src/domain/ids.ts'
import { IN_FLIGHT_MAX, makeEndpointQueue } from '../../../src/loops/webhooks/endpoint-queue.ts'
import type { WaitingDelivery, Wanted } from '../../../src/store/webhooks/deliveries.ts'

const WEBHOOK = asId<WebhookId>(randomUUID())
const idOf = (n: number): EventId => asId<EventId>(`00000000-0000-7000-8000-${n.toString(16).padStart(12, '0')}`)

type Row = { readonly n: number; readonly lane: string; next: Date | null; hasEnded: boolean }

/** The table, as `deliveries.waiting` reads it. */
function read(rows: readonly Row[], { after, count }: Wanted): readonly WaitingDelivery[] {
  const found = rows.filter(
    (row) =>
      !row.hasEnded &&
      (row.n > after.place || (row.n === after.place && idOf(row.n) > after.id)) &&
      !rows.some((other) => other.lane === row.lane && !other.hasEnded && other.next !== null && other.n !== row.n),
  )
  return found.slice(0, count).map(({ n, lane, next }) => {
    return { webhook_id: WEBHOOK, place: n, id: idOf(n), lane, event: null, tried_since: null, next_attempt_at: next }
  })
}

test('whatever fails and whenever it is read again, each lane is sent in order, one at a time, within the limit, to its end', () => {
  const step = fc.record({ pick: fc.nat(1000), isBad: fc.boolean(), forgets: fc.boolean(), passesMs: fc.nat(40) })
  fc.assert(
    fc.property(
      fc.array(fc.nat(4), { minLength: 1, maxLength: 60 }),
      fc.array(step, { maxLength: 200 }),
      (lanes, steps) => {
        const rows: Row[] = lanes.map((lane, n) => ({ n, lane: String(lane), next: null, hasEnded: false }))
        const queue = makeEndpointQueue(WEBHOOK)
        const sending: WaitingDelivery[] = []
        let nowMs = 1_000_000
        const advance = (): void => {
          const wanted = queue.wanted(8)
          if (wanted !== null) queue.add(read(rows, wanted), wanted.count)
          for (let next = queue.next(nowMs); next !== null; next = queue.next(nowMs)) {
            const { lane, place } = next
            assert.ok(!sending.some((one) => one.lane === lane), 'one at a time')
            assert.equal(
              place,
              rows.find((row) => row.lane === lane && !row.hasEnded)?.n,
              'the first that has not ended',
            )
            sending.push(next)
          }
          assert.ok(sending.length <= IN_FLIGHT_MAX)
          assert.equal(queue.sending, sending.length)
        }
        const finish = (at: number, hasFailed: boolean): void => {
          const [one] = sending.splice(at % Math.max(1, sending.length), 1)
          const row = rows.find(({ n }) => n === one?.place)
          if (one === undefined || row === undefined) return
          row.next = hasFailed ? new Date(nowMs + 20) : null
          row.hasEnded = !hasFailed
          queue.settle({ ...one, next_attempt_at: row.next }, { retryAt: row.next, hasFailed })
        }
        for (const { pick, isBad, forgets, passesMs } of steps) {
          advance()
          finish(pick, isBad)
          nowMs += passesMs
          if (forgets) queue.forget()
        }
        for (let left = 2_000; rows.some(({ hasEnded }) => !hasEnded) && left > 0; left--) {
          advance()
          finish(0, false)
          nowMs += 20
        }
        assert.ok(
          rows.every(({ hasEnded }) => hasEnded),
          'everything was sent',
        )
        advance()
        assert.ok(queue.isIdle)
      },
    ),
    { numRuns: 300 },
  )
})

test('an endpoint that fails gets one message at a time, and after an outage all that waits at once', () => {
  const rows: Row[] = Array.from({ length: 40 }, (_, n) => ({ n, lane: String(n), next: null, hasEnded: false }))
  const queue = makeEndpointQueue(WEBHOOK)
  const wanted = queue.wanted(128) ?? assert.fail()
  queue.add(read(rows, wanted), wanted.count)
  const nowMs = 1_000_000
  const take = (): WaitingDelivery => queue.next(nowMs) ?? assert.fail('nothing to send')
  const retryAt = new Date(nowMs + 3_600_000)
  const first = Array.from({ length: IN_FLIGHT_MAX }, take)
  assert.equal(queue.next(nowMs), null)
  for (const one of first) queue.settle({ ...one, next_attempt_at: retryAt }, { retryAt, hasFailed: true })
  for (let n = 0; n < 3; n++) {
    const one = take()
    assert.equal(queue.next(nowMs), null, 'one at a time')
    queue.settle({ ...one, next_attempt_at: retryAt }, { retryAt, hasFailed: true })
  }
  assert.equal(queue.dueAtMs(nowMs), retryAt.getTime())
  queue.settle(take(), { retryAt: null, hasFailed: false })
  const sent = new Set<string>()
  for (let next = queue.next(nowMs); next !== null; next = queue.next(nowMs)) {
    sent.add(next.lane)
    queue.settle(next, { retryAt: null, hasFailed: false })
  }
  for (const { lane } of first) assert.ok(sent.has(lane), 'also what would have waited for an hour')
})
