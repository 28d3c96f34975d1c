import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { listDeliveries } from '../../../src/control/webhooks/deliveries.ts'
import { updateWebhook } from '../../../src/control/webhooks/webhooks.ts'
import type { WebhookId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { makeDeliveryRecorder } from '../../../src/loops/webhooks/record-deliveries.ts'
import { listenForWebhooks } from '../../support/webhook-receiver.ts'
import { makeWebhookWorld, type WebhookWorld } from '../../support/webhook-world.ts'
import { waitUntil } from '../../support/wait.ts'

type Receiver = Awaited<ReturnType<typeof listenForWebhooks>>

async function open(t: TestContext): Promise<{ world: WebhookWorld; receiver: Receiver }> {
  const world = await makeWebhookWorld()
  const receiver = await listenForWebhooks()
  t.after(async () => {
    await world.close()
    await receiver.close()
  })
  return { world, receiver }
}

const fence = (): Promise<void> => Promise.resolve()
const recorderOf = ({ deps }: WebhookWorld, partSize: number) => makeDeliveryRecorder({ ...deps, fence, partSize })

/** The events that have become deliveries, in the order in which they are sent. */
async function recorded({ deps }: WebhookWorld, webhook: WebhookId): Promise<readonly string[]> {
  const { rows } = await deps.db.asSystem((q) =>
    q.query<{ readonly id: string }>({
      text: 'SELECT id FROM webhook_deliveries WHERE webhook_id = $1 ORDER BY place, id',
      values: [webhook],
    }),
  )
  return rows.map(({ id }) => id)
}

test('events that commit in any order, while recorders come and go, become deliveries once, each writer in its order', async (t) => {
  const { world, receiver } = await open(t)
  const { webhook } = await world.add(receiver, '/a', { category: 'sandbox' })
  const { org_id } = world.caller
  let isDone = false
  const recording = (async () => {
    while (!isDone) {
      // Each recorder goes on where the one before stopped, also in the middle of a window.
      const look = recorderOf(world, 3)
      for (let left = 1 + randomBelow(systemRandom, 6); left > 0; left--) await look()
    }
  })()
  const written: string[][] = await Promise.all(
    Array.from({ length: 10 }, async () => {
      const sandbox = randomUUID()
      const ids: string[] = []
      for (let n = 0; n < 25; n++) {
        // A transaction with a low number that stays open holds back what others commit meanwhile.
        const held = world.deps.db.transaction(org_id, async (tx) => {
          await tx.query({ text: 'SELECT pg_current_xact_id()' })
          await systemClock.sleep(randomBelow(systemRandom, 15))
        })
        ids.push(await world.record(sandbox, String(n)))
        await held
      }
      return ids
    }),
  )
  await waitUntil(async () => (await recorded(world, webhook.id)).length >= 250, 30_000)
  isDone = true
  await recording
  const found = await recorded(world, webhook.id)
  assert.equal(found.length, 250)
  for (const ids of written)
    assert.deepEqual(
      found.filter((id) => ids.includes(id)),
      ids,
    )
})

test('an event of a transaction that was open when the webhook was made belongs to it, and one that had ended does not', async (t) => {
  const { world, receiver } = await open(t)
  const look = recorderOf(world, 100)
  await look()
  const before = await world.record(randomUUID(), 'before')
  const opened = Promise.withResolvers<void>()
  const release = Promise.withResolvers<void>()
  const slow = world.deps.db.transaction(world.caller.org_id, async (tx) => {
    await tx.query({ text: 'SELECT pg_current_xact_id()' })
    opened.resolve()
    await release.promise
  })
  await opened.promise
  const { webhook } = await world.add(receiver, '/a', { category: 'sandbox' })
  const after = await world.record(randomUUID(), 'after')
  await look()
  assert.deepEqual(await recorded(world, webhook.id), [], 'it waits for the open transaction')
  release.resolve()
  await slow
  await waitUntil(async () => {
    await look()
    return (await recorded(world, webhook.id)).length > 0
  })
  assert.deepEqual(await recorded(world, webhook.id), [after])
  assert.notEqual(before, after)
})

test('other filters apply to events from then on: what was committed before is judged by the filters before', async (t) => {
  const { world, receiver } = await open(t)
  const { deps, caller } = world
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const { id } = webhook
  // Nothing records, as between two leaders.
  const [first, org] = [await world.record(randomUUID(), 'first'), await world.record(null, 'not asked for yet')]
  await updateWebhook(deps, caller, { id, changes: { event_types: ['org_created'] } })
  const [sandbox, second] = [
    await world.record(randomUUID(), 'no longer asked for'),
    await world.record(null, 'second'),
  ]
  await updateWebhook(deps, caller, { id, changes: { event_types: ['sandbox_renamed'], description: 'again' } })
  const third = await world.record(randomUUID(), 'third')
  const look = recorderOf(world, 2)
  await waitUntil(async () => {
    await look()
    return (await recorded(world, id)).includes(third)
  })
  assert.deepEqual(await recorded(world, id), [first, second, third])
  assert.ok(![first, second, third].includes(org) && ![first, second, third].includes(sandbox))
})

test('filters that change while events are written and recorded lose no event that all of them match, and repeat none', async (t) => {
  const { world, receiver } = await open(t)
  const { deps, caller } = world
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const { id } = webhook
  const writers = { left: 6 }
  const written = Array.from({ length: writers.left }, async () => {
    const sandbox = randomUUID()
    const ids: string[] = []
    for (let n = 0; n < 20; n++) ids.push(await world.record(sandbox, String(n)))
    writers.left -= 1
    return ids
  })
  const recording = (async () => {
    while (writers.left > 0) await recorderOf(world, 3)()
  })()
  const changing = (async () => {
    for (let n = 0; writers.left > 0; n++)
      await updateWebhook(deps, caller, { id, changes: { category: n % 2 === 0 ? 'sandbox' : null } })
  })()
  const ids = await Promise.all(written)
  await Promise.all([recording, changing])
  const look = recorderOf(world, 50)
  await waitUntil(async () => {
    await look()
    return (await recorded(world, id)).length >= 120
  })
  const found = await recorded(world, id)
  assert.equal(found.length, 120)
  for (const ofOne of ids) {
    const inOrder = found.filter((one) => ofOne.includes(one))
    assert.deepEqual(inOrder, ofOne)
  }
})

test('after a restore into another database, nothing is missed, what waited comes first, and what was delivered stays', async (t) => {
  const { world, receiver } = await open(t)
  const { webhook } = await world.add(receiver, '/a', { category: 'sandbox' })
  const end = world.deliver()
  const delivered = await world.record(randomUUID(), 'delivered')
  const list = async () =>
    (await listDeliveries(world.deps, world.caller, { cursor: null, limit: 50, webhook_id: webhook.id, status: null }))
      .items
  await waitUntil(async () => (await list())[0]?.status === 'delivered')
  await updateWebhook(world.deps, world.caller, { id: webhook.id, changes: { paused: true } })
  const waiting = [await world.record(randomUUID(), 'w1'), await world.record(randomUUID(), 'w2')]
  await waitUntil(async () => (await list()).length === 3)
  await end()
  const missed = await world.record(randomUUID(), 'recorded in the last moment of the backup')
  // What a restore leaves: rows of another count of transactions, all events by one transaction, and later numbers that are lower.
  await world.asOwner(`ALTER TABLE events DISABLE TRIGGER events_append_only`)
  await world.asOwner(`UPDATE events SET xact = pg_current_xact_id()`)
  await world.asOwner(`ALTER TABLE events ENABLE TRIGGER events_append_only`)
  await world.asOwner(`UPDATE webhook_progress SET epoch = 'another', done = '900000000', window_end = NULL`)
  await world.asOwner(`UPDATE webhook_deliveries SET place = place + 900000000`)
  await world.asOwner(`UPDATE webhooks SET begins = '900000000:900000000:'`)
  const later = await world.record(randomUUID(), 'later')
  const look = recorderOf(world, 2)
  await waitUntil(async () => {
    await look()
    return (await list()).length >= 5
  })
  for (let n = 0; n < 5; n++) await look()
  const found = await list()
  assert.deepEqual(new Set(found.map(({ id }) => String(id))), new Set([delivered, ...waiting, missed, later]))
  assert.equal(found.find(({ id }) => id === delivered)?.status, 'delivered')
  const order = (await recorded(world, webhook.id)).filter((id) => id !== delivered)
  assert.deepEqual(order.slice(0, 2), waiting)
  await updateWebhook(world.deps, world.caller, { id: webhook.id, changes: { paused: false } })
  world.deliver()
  const names = (): readonly unknown[] => receiver.received.map(({ payload }) => payload['name'])
  await waitUntil(() => names().length >= 5)
  // Once a later event is delivered and nothing waits, no message is left that could be a second one.
  await world.record(randomUUID(), 'last')
  await waitUntil(
    async () => (await list()).length === 6 && (await list()).every(({ status }) => status === 'delivered'),
  )
  assert.equal(names().length, 6, 'none twice')
})
