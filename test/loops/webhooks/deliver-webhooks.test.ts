import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { getDelivery, listDeliveries, resendDelivery } from '../../../src/control/webhooks/deliveries.ts'
import { getWebhook, rotateWebhookSecret, updateWebhook } from '../../../src/control/webhooks/webhooks.ts'
import { asId, type EventId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makePruneWebhookDeliveriesLoop } from '../../../src/loops/prune-webhook-deliveries.ts'
import { makeTestWebhooks } from '../../support/webhooks.ts'
import { listenForWebhooks } from '../../support/webhook-receiver.ts'
import { makeWebhookWorld, QUICK, type WebhookWorld } from '../../support/webhook-world.ts'
import { waitUntil } from '../../support/wait.ts'

type Receiver = Awaited<ReturnType<typeof listenForWebhooks>>

async function open(
  t: TestContext,
  answer?: Parameters<typeof listenForWebhooks>[0],
  options: Parameters<typeof makeWebhookWorld>[0] = {},
): Promise<{ world: WebhookWorld; receiver: Receiver }> {
  const world = await makeWebhookWorld(options)
  const receiver = await listenForWebhooks(answer)
  t.after(async () => {
    await world.close()
    await receiver.close()
  })
  return { world, receiver }
}

const names = ({ received }: Receiver, path = '/a'): readonly unknown[] =>
  received.filter((one) => one.path === path && one.status < 300).map(({ payload }) => payload['name'])

/** How many deliveries to all webhooks are still to be made. */
async function waitingIn({ deps }: WebhookWorld): Promise<number | undefined> {
  const text = `SELECT count(*)::integer AS count FROM webhook_deliveries WHERE status = 'waiting'`
  const { rows } = await deps.db.asSystem((q) => q.query<{ readonly count: number }>({ text }))
  return rows[0]?.count
}

const page = { cursor: null, limit: 50, status: null }

test('a webhook gets the events after its creation that match its filters, once and in order', async (t) => {
  const { world, receiver } = await open(t)
  const [one, other] = [randomUUID(), randomUUID()]
  await world.record(one, 'before')
  await world.add(receiver, '/a')
  await world.add(receiver, '/one', { sandbox_id: one })
  await world.add(receiver, '/types', { event_types: ['org_created', 'webhook_created'] })
  await world.add(receiver, '/category', { category: 'quota' })
  world.deliver()
  for (let n = 0; n < 20; n++) await world.record(n % 2 === 0 ? one : other, String(n))
  await world.record(null, 'org')
  const renamed = (): readonly unknown[] =>
    receiver.received.filter(({ path, type }) => path === '/a' && type === 'sandbox_renamed')
  await waitUntil(
    () => renamed().length === 20 && names(receiver, '/types').includes('org') && names(receiver, '/one').length === 10,
  )
  // The last event became deliveries, and so did those before it. Once none waits, nothing more is sent.
  await waitUntil(async () => (await waitingIn(world)) === 0)
  const of = (sandbox: string) =>
    receiver.received
      .filter(({ path, sandbox_id }) => path === '/a' && sandbox_id === sandbox)
      .map(({ payload }) => payload['name'])
  assert.deepEqual(of(one), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18].map(String))
  assert.deepEqual(of(other), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19].map(String))
  assert.deepEqual(names(receiver, '/one'), of(one))
  assert.deepEqual(
    receiver.received.filter(({ path }) => path === '/types').map(({ type }) => type),
    ['webhook_created', 'org_created'],
    'of the later webhook, and not of its own creation',
  )
  assert.deepEqual(names(receiver, '/category'), [])
  assert.equal(receiver.forged, 0)
  const ids = receiver.received.filter(({ path }) => path === '/a').map(({ id }) => id)
  assert.equal(new Set(ids).size, ids.length, 'none twice')
  assert.ok(receiver.connections <= 24, `connections are kept: ${String(receiver.connections)}`)
})

test('a failing delivery holds back its own sandbox and no other, and a slow endpoint delays no other', async (t) => {
  const [bad, good] = [randomUUID(), randomUUID()]
  let isBroken = true
  const release = Promise.withResolvers<void>()
  t.after(() => release.resolve()) // the receiver closes when its replies are sent
  const { world, receiver } = await open(t, async ({ sandbox_id, path }) => {
    if (path === '/slow') await release.promise
    return { status: isBroken && sandbox_id === bad ? 500 : 200, body: 'why not' }
  })
  await world.add(receiver, '/slow')
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  world.deliver()
  for (const sandbox of [bad, good])
    for (let n = 0; n < 10; n++) await world.record(sandbox, `${sandbox === bad ? 'bad' : 'good'}-${String(n)}`)
  await waitUntil(() => names(receiver).length === 10)
  assert.deepEqual(names(receiver, '/slow'), [])
  release.resolve()
  assert.deepEqual(
    names(receiver),
    Array.from({ length: 10 }, (_, n) => `good-${String(n)}`),
  )
  const failed = receiver.received.filter(({ status, path }) => status === 500 && path === '/a')
  assert.deepEqual([...new Set(failed.map(({ payload }) => payload['name']))], ['bad-0'])
  const waiting = async () =>
    (await listDeliveries(world.deps, world.caller, { ...page, webhook_id: webhook.id, status: 'waiting' })).items
  await waitUntil(async () => (await waiting()).length === 10)
  const items = await waiting()
  const first = items.at(-1)
  assert.ok(first !== undefined && first.attempts >= 1 && first.next_attempt_at !== null)
  assert.deepEqual([first.reply_status, first.reply_body, first.error], [500, 'why not', null])
  assert.equal(JSON.parse(first.request_body ?? '').data.id, first.id)
  isBroken = false
  await waitUntil(() => names(receiver).length === 20)
  assert.deepEqual(
    names(receiver).slice(10),
    Array.from({ length: 10 }, (_, n) => `bad-${String(n)}`),
  )
})

test('410 pauses at once with an event, a paused webhook keeps what it would send, and resuming sends it in order', async (t) => {
  let isGone = true
  const { world, receiver } = await open(t, ({ path }) => ({ status: isGone && path === '/a' ? 410 : 200 }))
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  await world.add(receiver, '/beside', { event_types: ['sandbox_renamed'] })
  world.deliver()
  const sandbox = randomUUID()
  await world.record(sandbox, '0')
  await waitUntil(async () => (await getWebhook(world.deps, world.caller, webhook.id)).pause_reason === 'gone')
  for (let n = 1; n < 5; n++) await world.record(sandbox, String(n))
  await waitUntil(() => names(receiver, '/beside').length === 5)
  assert.equal(receiver.received.filter(({ path }) => path === '/a').length, 1)
  const { rows } = await world.deps.db.asSystem((q) =>
    q.query<{ payload: unknown }>({ text: `SELECT payload FROM events WHERE event_type = 'webhook_paused'` }),
  )
  assert.deepEqual(rows, [{ payload: { webhook_id: webhook.id, host: new URL(receiver.url).host, reason: 'gone' } }])
  isGone = false
  await updateWebhook(world.deps, world.caller, { id: webhook.id, changes: { paused: false } })
  await waitUntil(() => names(receiver).length === 5)
  assert.deepEqual(names(receiver), ['0', '1', '2', '3', '4'])
})

test('a delivery that fails for too long is given up and pauses the webhook; it can be sent again', async (t) => {
  let status = 503
  const { world, receiver } = await open(t, () => ({ status }))
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  // The time for attempts passes at once after the third, because a slow machine makes fewer of them in a short time.
  const passedMs = (): number => (receiver.received.length < 3 ? 0 : QUICK.totalMs)
  const clock = { ...systemClock, now: () => new Date(systemClock.now().getTime() + passedMs()) }
  const end = world.deliver({ clock })
  const sandbox = randomUUID()
  const id = asId<EventId>(await world.record(sandbox, '0'))
  await world.record(sandbox, '1')
  await waitUntil(async () => (await getWebhook(world.deps, world.caller, webhook.id)).pause_reason === 'failing')
  const key = { webhook_id: webhook.id, id }
  const failed = await getDelivery(world.deps, world.caller, key)
  assert.deepEqual([failed.status, failed.next_attempt_at, failed.attempts], ['failed', null, 3])
  await end()
  world.deliver()
  status = 200
  await updateWebhook(world.deps, world.caller, { id: webhook.id, changes: { paused: false } })
  await waitUntil(() => names(receiver).length === 1)
  assert.deepEqual(names(receiver), ['1'], 'the failed one is not sent by itself')
  assert.equal((await resendDelivery(world.deps, world.caller, key)).status, 'waiting')
  await waitUntil(async () => (await getDelivery(world.deps, world.caller, key)).status === 'delivered')
  assert.deepEqual(names(receiver), ['1', '0'])
  await resendDelivery(world.deps, world.caller, key)
  await waitUntil(() => names(receiver).length === 3)
  assert.equal(new Set(receiver.received.filter(({ payload }) => payload['name'] === '0').map((one) => one.id)).size, 1)
})

test('sending a delivery again that waits for its next attempt sends it at once', async (t) => {
  let status = 500
  const { world, receiver } = await open(t, () => ({ status }))
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  world.deliver({ schedule: { firstMs: 600_000, lastMs: 600_000, totalMs: 6_000_000 } })
  const sandbox = randomUUID()
  const id = asId<EventId>(await world.record(sandbox, '0'))
  await world.record(sandbox, '1')
  await waitUntil(() => receiver.received.length === 1)
  await waitUntil(
    async () => (await getDelivery(world.deps, world.caller, { webhook_id: webhook.id, id })).attempts === 1,
  )
  status = 200
  await resendDelivery(world.deps, world.caller, { webhook_id: webhook.id, id })
  await waitUntil(() => names(receiver).length === 2)
  assert.deepEqual(names(receiver), ['0', '1'])
})

test('an endpoint that says Retry-After gets no attempt before that', async (t) => {
  const { world, receiver } = await open(t, () => ({ status: 429, headers: { 'retry-after': '60' } }))
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  world.deliver({ schedule: { firstMs: 10, lastMs: 600_000, totalMs: 6_000_000 } })
  const id = asId<EventId>(await world.record(randomUUID(), '0'))
  const delivery = () => getDelivery(world.deps, world.caller, { webhook_id: webhook.id, id })
  await waitUntil(() => receiver.received.length > 0)
  await waitUntil(async () => (await delivery()).attempts > 0)
  const { last_attempt_at, next_attempt_at, attempts } = await delivery()
  assert.equal(attempts, 1)
  assert.equal(Number(next_attempt_at) - Number(last_attempt_at), 60_000)
})

test('redirects are not followed, a closed connection is tried again, and of a long reply only the head is kept', async (t) => {
  const second = await listenForWebhooks()
  t.after(() => second.close())
  const answers = [
    { status: 302, headers: { location: `${second.url}/b` } },
    null,
    null, // an open connection may have been closed just then, so it is tried once more at once
    { status: 500, body: `é\0${'x'.repeat(100_000)}` },
    { status: 200 },
  ]
  const { world, receiver } = await open(
    t,
    (_message, at) => answers[at] ?? (at < answers.length ? null : { status: 200 }),
  )
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const bodies: (string | null)[] = []
  world.deliver()
  const id = asId<EventId>(await world.record(randomUUID(), '0'))
  await waitUntil(async () => {
    const delivery = await getDelivery(world.deps, world.caller, { webhook_id: webhook.id, id }).catch(() => null)
    if (delivery === null) return false
    bodies.push(delivery.reply_body ?? delivery.error)
    return delivery.status === 'delivered'
  })
  assert.deepEqual(
    receiver.received.map(({ status }) => status),
    [302, 500, 200],
  )
  assert.equal(second.connections, 0)
  assert.ok(bodies.some((text) => text?.startsWith('éx') === true && text.length < 1_100))
  assert.ok(bodies.some((text) => text?.includes('was closed without a reply') === true))
})

test('both secrets sign after a rotation, and a name that leads inside is not connected to', async (t) => {
  const { world, receiver } = await open(t, undefined, { webhooks: makeTestWebhooks(['127.0.0.2']) })
  await receiver.close()
  const reachable = await listenForWebhooks(undefined, '127.0.0.2')
  t.after(() => reachable.close())
  const at = { ...reachable, url: reachable.url.replace('127.0.0.1', '127.0.0.2') }
  const { webhook, secret } = await world.add(at, '/a', { event_types: ['sandbox_renamed'] })
  const inside = await world.add({ ...at, url: at.url.replace('127.0.0.2', 'localhost') }, '/inside', {
    event_types: ['sandbox_renamed'],
  })
  const rotated = await rotateWebhookSecret(world.deps, world.caller, webhook.id)
  assert.notEqual(rotated.secret, secret)
  world.deliver()
  const id = asId<EventId>(await world.record(randomUUID(), 'old secret'))
  await waitUntil(() => names(reachable).length === 1)
  reachable.secrets.set('/a', [rotated.secret])
  await world.record(randomUUID(), 'new secret')
  await waitUntil(() => names(reachable).length === 2)
  const delivery = await getDelivery(world.deps, world.caller, { webhook_id: inside.webhook.id, id })
  assert.match(delivery.error ?? '', /^localhost:\d+: there is no address that may be reached$/)
  assert.equal(reachable.forged, 0)
})

test('old deliveries and those beyond the bounds are deleted, and an event counts those that still waited', async (t) => {
  const { world, receiver } = await open(t)
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const end = world.deliver()
  for (let n = 0; n < 8; n++) await world.record(randomUUID(), String(n))
  const { deps, caller } = world
  const count = async (): Promise<number> =>
    (await listDeliveries(deps, caller, { ...page, webhook_id: webhook.id })).items.length
  await waitUntil(() => names(receiver).length === 8)
  await waitUntil(
    async () =>
      (await listDeliveries(deps, caller, { ...page, webhook_id: webhook.id, status: 'delivered' })).items.length === 8,
  )
  await updateWebhook(deps, caller, { id: webhook.id, changes: { paused: true } })
  for (let n = 0; n < 8; n++) await world.record(randomUUID(), `late-${String(n)}`)
  await waitUntil(async () => (await count()) === 16)
  await end()
  const loop = makePruneWebhookDeliveriesLoop({
    ...deps,
    fence: () => Promise.resolve(),
    kept: { ended: 3, waiting: 5 },
  })
  const pass = (): Promise<number | null> => loop.run(new AbortController().signal)
  await pass()
  const left = (await listDeliveries(deps, caller, { ...page, webhook_id: webhook.id })).items
  assert.deepEqual(left.map(({ request_body }) => JSON.parse(request_body ?? '').data.payload.name), [
    'late-7', 'late-6', 'late-5', 'late-4', 'late-3', '7', '6', '5',
  ]) // prettier-ignore
  const { rows } = await deps.db.asSystem((q) =>
    q.query<{ count: number }>({
      text: `SELECT (payload ->> 'count')::integer AS count FROM events WHERE event_type = 'webhook_deliveries_dropped'`,
    }),
  )
  assert.deepEqual(rows, [{ count: 3 }])
  const dayMs = 86_400_000
  const later = { ...deps.clock, now: () => new Date(systemClock.now().getTime() + 31 * dayMs) }
  await makePruneWebhookDeliveriesLoop({ ...deps, clock: later, fence: () => Promise.resolve() }).run(
    new AbortController().signal,
  )
  assert.equal(await count(), 0)
})

test('one pass drops everything that waits beyond the bound, however much it is, and its events count all of it', async (t) => {
  const { world, receiver } = await open(t)
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const { deps, caller } = world
  const query = async (text: string, values: readonly unknown[] = []): Promise<readonly { n: number }[]> =>
    (await deps.db.asSystem((q) => q.query<{ n: number }>({ text, values }))).rows
  await query(
    `INSERT INTO webhook_deliveries (webhook_id, id, org_id, lane, place, created_at)
     SELECT $1, uuidv7(), $2, gen_random_uuid(), n, now() FROM generate_series(1, 4500) n`,
    [webhook.id, caller.org_id],
  )
  const fence = (): Promise<void> => Promise.resolve()
  const kept = { ended: 10, waiting: 10 }
  await makePruneWebhookDeliveriesLoop({ ...deps, fence, kept }).run(new AbortController().signal)
  const dropped = `SELECT sum((payload ->> 'count')::integer)::integer AS n FROM events WHERE event_type = 'webhook_deliveries_dropped'`
  assert.deepEqual(await query('SELECT count(*)::integer AS n FROM webhook_deliveries'), [{ n: 10 }])
  assert.deepEqual(await query(dropped), [{ n: 4_490 }])
})

test('a webhook whose secret can not be opened delays no other', async (t) => {
  const { world, receiver } = await open(t)
  const broken = await world.add(receiver, '/broken', { event_types: ['sandbox_renamed'] })
  await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  await world.asOwner(`UPDATE webhooks SET secret_sealed = '\\x01' WHERE id = $1`, [broken.webhook.id])
  world.deliver()
  for (let n = 0; n < 3; n++) await world.record(randomUUID(), String(n))
  await waitUntil(() => names(receiver).length === 3)
  assert.deepEqual(names(receiver, '/broken'), [])
})

test('the end of a process waits for what is under way, so that nothing is sent again', async (t) => {
  let asked = 0
  const { world, receiver } = await open(t, async () => {
    asked += 1
    await systemClock.sleep(400)
    return { status: 200 }
  })
  const { webhook } = await world.add(receiver, '/a', { event_types: ['sandbox_renamed'] })
  const end = world.deliver()
  const sandbox = randomUUID()
  const id = asId<EventId>(await world.record(sandbox, '0'))
  await world.record(sandbox, '1')
  await waitUntil(() => asked === 1)
  await end()
  assert.equal((await getDelivery(world.deps, world.caller, { webhook_id: webhook.id, id })).status, 'delivered')
  world.deliver()
  await waitUntil(() => receiver.received.length === 2)
  assert.deepEqual(names(receiver), ['0', '1'])
})
