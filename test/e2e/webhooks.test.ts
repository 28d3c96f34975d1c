import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall } from '../support/api.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { noteFault } from '../support/reliability.ts'
import { startReplicaWorld, type ReplicaProcess, type ReplicaWorld } from '../support/replica-world.ts'
import { whyNoServer } from '../support/server.ts'
import { listenForWebhooks, type WebhookReceiver } from '../support/webhook-receiver.ts'
import { waitUntil } from '../support/wait.ts'

// Webhooks of two server processes with real sandboxes. The process that delivers is killed.

const LIMIT_MS = 60_000
const SANDBOXES = 3

describe('webhooks', { skip: whyNoServer() }, () => {
  let world: ReplicaWorld
  let receiver: WebhookReceiver
  let isBroken = false
  before(async () => {
    const open = { SANDYARD_WEBHOOKS_ALLOWED: '127.0.0.1' }
    world = await startReplicaWorld(2, [open, open])
    receiver = await listenForWebhooks(() => ({ status: isBroken ? 503 : 200, body: 'thanks' }))
  })
  after(async () => {
    await receiver.close()
    await world.close()
  })
  const one = (index: number): ReplicaProcess => world.replicas[index] ?? assert.fail()
  const deliverer = async (): Promise<ReplicaProcess | null> => {
    const [lead] = await world.rows<{ url: string }>(
      `SELECT r.url FROM leads l JOIN replicas r ON r.id = l.holder WHERE l.name = 'webhooks'`,
    )
    return world.replicas.find(({ url }) => url === lead?.url) ?? null
  }
  const secrets: string[] = []
  const create = async (path: string, fields: object = {}): Promise<string> => {
    const body = { url: receiver.url + path, ...fields }
    const { id, secret } = Object(await mustCall(one(0), 'create_webhook', { body }))
    receiver.secrets.set(path, [secret])
    secrets.push(String(secret))
    return String(id)
  }

  test('sends the events of real sandboxes to a receiver, in order, although the process that delivers is killed', async () => {
    const webhook_id = await create('/all', { category: 'sandbox' })
    const tested = await mustCall(one(1), 'test_webhook', { params: { webhook_id } })
    const { duration_ms: _duration, ...answered } = Object(tested)
    assert.deepEqual(answered, { delivered: true, reply_status: 200, reply_body: 'thanks', error: null })
    assert.equal(receiver.received.at(-1)?.type, 'webhook_test')
    let kills = 0
    const boxes = await Promise.all(
      Array.from({ length: SANDBOXES }, async (_, index) => {
        const body = {
          name: `hooked-${String(index)}`,
          image: DEMO_IMAGE,
          resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 },
        }
        const made = await mustCall(one(1), 'create_sandbox', { body })
        const sandbox_id = String(made.id)
        await mustCall(one(1), 'start_sandbox', { params: { sandbox_id } })
        return sandbox_id
      }),
    )
    const of = (sandbox: string): readonly string[] =>
      receiver.received
        .filter(({ path, sandbox_id, status }) => path === '/all' && sandbox_id === sandbox && status === 200)
        .map(({ type }) => type)
    await waitUntil(() => boxes.every((sandbox) => of(sandbox).includes('sandbox_running')), LIMIT_MS)
    const leader = (await deliverer()) ?? assert.fail('nobody delivers')
    const other = world.replicas.find((replica) => replica !== leader) ?? assert.fail()
    isBroken = true // so that there is something to send again
    const stopping = boxes.map((sandbox_id) => mustCall(other, 'stop_sandbox', { params: { sandbox_id } }))
    await Promise.all(stopping)
    await waitUntil(() => receiver.received.some(({ status }) => status === 503), LIMIT_MS)
    await leader.kill9()
    kills += 1
    isBroken = false
    for (const sandbox_id of boxes) {
      await waitUntil(
        async () => Object((await call(other, 'get_sandbox', { params: { sandbox_id } })).body).status === 'stopped',
        LIMIT_MS,
      )
      await mustCall(other, 'delete_sandbox', { params: { sandbox_id } })
    }
    await waitUntil(() => boxes.every((sandbox) => of(sandbox).at(-1) === 'sandbox_deleted'), LIMIT_MS)
    const recorded = await world.rows<{ id: string; sandbox_id: string }>(
      `SELECT id, sandbox_id FROM events WHERE sandbox_id IS NOT NULL ORDER BY id`,
    )
    for (const sandbox of boxes) {
      const accepted = receiver.received.filter(
        (m) => m.path === '/all' && m.sandbox_id === sandbox && m.status === 200,
      )
      const order = accepted.map(({ id }) => id).filter((id, at, all) => id !== all[at - 1]) // only the latest may be repeated
      assert.deepEqual(
        order,
        recorded.filter((event) => event.sandbox_id === sandbox).map(({ id }) => id),
      )
    }
    assert.equal(receiver.forged, 0)
    await leader.start()
    noteFault({
      area: 'replicas',
      fault: 'kill -9 of the server process that delivers to webhooks, while their receiver fails',
      injected: kills,
      checked: 'the other process delivers every event, those of a sandbox in order',
      found: `${String(receiver.received.length)} messages`,
    })
  })

  test('refuses private addresses unless they are named, and connects to none that a name leads to', async () => {
    for (const url of [
      'https://10.0.0.1/',
      'https://[::1]/',
      'https://169.254.169.254/',
      'http://8.8.8.8/',
      'https://user:pw@example.com/',
    ]) {
      const reply = await call(one(0), 'create_webhook', { body: { url } })
      assert.equal(reply.status, 400, url)
      assert.equal(Object(reply.body).error.details.field, 'url')
      assert.doesNotMatch(JSON.stringify(reply.body), /pw@/)
    }
    // The name is accepted, because names are judged with each connection. It leads to 127.0.0.1, but only the address is named: so it may.
    const named = await create('/named', { url: `${receiver.url.replace('127.0.0.1', 'localhost')}/named` })
    const open = await mustCall(one(0), 'test_webhook', { params: { webhook_id: named } })
    assert.equal(Object(open).delivered, true)
  })

  test('no log of a server and no table has a secret in the clear', async () => {
    const webhook_id = await create('/rotated')
    const rotated = await mustCall(one(0), 'rotate_webhook_secret', { params: { webhook_id } })
    secrets.push(String(Object(rotated).secret))
    const shown = await mustCall(one(0), 'get_webhook', { params: { webhook_id } })
    const listed = await mustCall(one(0), 'list_webhooks')
    const tables = await world.rows<{ name: string }>(
      `SELECT quote_ident(tablename) AS name FROM pg_tables WHERE schemaname = 'public'`,
    )
    const rows = await Promise.all(
      tables.map(({ name }) => world.rows<{ row: string }>(`SELECT t::text AS row FROM ${name} t`)),
    )
    await systemClock.sleep(200)
    const all = [
      JSON.stringify([shown, listed]),
      ...world.replicas.map((replica) => replica.output()),
      JSON.stringify(rows),
    ].join('\n')
    for (const secret of secrets) {
      const bits = secret.slice('whsec_'.length)
      const spellings = [
        bits,
        Buffer.from(bits, 'base64').toString('hex'),
        Buffer.from(secret).toString('hex'),
        Buffer.from(secret).toString('base64').replace(/=+$/, ''),
      ]
      for (const spelling of spellings) assert.ok(!all.includes(spelling), spelling)
    }
  })
})
