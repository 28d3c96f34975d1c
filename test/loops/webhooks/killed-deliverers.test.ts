import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { join } from 'node:path'
import { test } from 'node:test'
import { listDeliveries } from '../../../src/control/webhooks/deliveries.ts'
import type { WebhookId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { noteFault } from '../../support/reliability.ts'
import { waitUntil } from '../../support/wait.ts'
import { listenForWebhooks } from '../../support/webhook-receiver.ts'
import { makeWebhookWorld } from '../../support/webhook-world.ts'

const PROCESS = join(import.meta.dirname, '../../support/webhook-deliverer-process.ts')
const SANDBOXES = 12
const EVENTS_EACH = 40
const PATHS = ['/a', '/b', '/c']
const KILLS = 8

test('every event arrives, those of a sandbox in order, whatever fails and whenever processes are killed', async (t) => {
  const key = systemRandom.bytes(32)
  const world = await makeWebhookWorld({ sealingKey: key })
  // Fails every fourth message in one of the ways in which receivers fail.
  const receiver = await listenForWebhooks(async () => {
    const dice = randomBelow(systemRandom, 16)
    if (dice < 2) await systemClock.sleep(randomBelow(systemRandom, 40))
    if (dice === 3) return null
    return { status: dice < 3 ? 500 : dice === 4 ? 302 : 200, body: 'x'.repeat(randomBelow(systemRandom, 2_000)) }
  })
  let process_: ChildProcess | null = null
  t.after(async () => {
    process_?.kill('SIGKILL')
    await receiver.close()
    await world.close()
  })
  const ids: WebhookId[] = []
  for (const path of PATHS) ids.push((await world.add(receiver, path, { category: 'sandbox' })).webhook.id)
  const start = (): ChildProcess =>
    spawn(process.execPath, [PROCESS, world.databaseUrl, key.toString('hex')], {
      stdio: ['pipe', 'inherit', 'inherit'],
    })
  let isDone = false
  let kills = 0
  const killing = (async () => {
    while (!isDone) {
      process_ = start()
      const exit = once(process_, 'exit')
      const before = receiver.received.length
      await waitUntil(() => isDone || receiver.received.length > before, 30_000)
      if (kills >= KILLS) return
      await systemClock.sleep(randomBelow(systemRandom, 250))
      process_.kill('SIGKILL')
      kills += 1
      await exit
    }
  })()
  const sandboxes = Array.from({ length: SANDBOXES }, () => randomUUID())
  await Promise.all(
    sandboxes.map(async (sandbox) => {
      for (let n = 0; n < EVENTS_EACH; n++) {
        await world.record(sandbox, String(n))
        await systemClock.sleep(randomBelow(systemRandom, 300))
      }
    }),
  )
  const total = PATHS.length * SANDBOXES * EVENTS_EACH
  const accepted = (): number =>
    new Set(receiver.received.filter(({ status }) => status === 200).map(({ path, id }) => `${path} ${id}`)).size
  await waitUntil(
    () => accepted() === total,
    90_000,
    () => `${String(accepted())} of ${String(total)}`,
  )
  await waitUntil(async () => {
    const waiting = { cursor: null, limit: 1, status: 'waiting' } as const
    const lists = ids.map((id) => listDeliveries(world.deps, world.caller, { ...waiting, webhook_id: id }))
    return (await Promise.all(lists)).every(({ items }) => items.length === 0)
  })
  isDone = true
  await killing
  assert.ok(kills >= 3, `${String(kills)} kills`)
  assert.equal(receiver.forged, 0)
  for (const path of PATHS)
    for (const sandbox of sandboxes) {
      const attempts = receiver.received.filter((one) => one.path === path && one.sandbox_id === sandbox)
      const numbers = attempts.map(({ payload }) => Number(payload['name']))
      assert.deepEqual(numbers, numbers.toSorted((a, b) => a - b), 'only the latest one is ever repeated') // prettier-ignore
      assert.equal(new Set(numbers).size, EVENTS_EACH)
    }
  noteFault({
    area: 'replicas',
    fault: 'kill -9 of the process that delivers to webhooks, whose receivers fail a quarter of the messages',
    injected: kills,
    checked: 'every event arrives, those of a sandbox in order, and only the latest one is repeated',
    found: `${String(total)} deliveries in ${String(receiver.received.length)} messages`,
  })
})
