import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openNotifications, type Notifications } from '../../../src/store/postgres/notifications.ts'
import { makeEmptyDatabase, onServer, type TestDatabase } from '../../support/postgres.ts'

describe('wake-ups', () => {
  let home: TestDatabase
  before(async () => {
    home = await makeEmptyDatabase()
  })
  after(() => home.close())

  test('a subscriber in the same process is woken at once, once, and no more after it left', async () => {
    await using wake = await open(home)
    let woken = 0
    const leave = wake.subscribe('sandboxes', () => void woken++)
    wake.publish(['sandboxes'])
    assert.equal(woken, 1)
    await using other = await open(home)
    const heard = hear(other, 'sandboxes')
    wake.publish(['sandboxes'])
    await heard.atLeast(1)
    assert.equal(woken, 2) // its own notification did not come back
    leave()
    wake.publish(['sandboxes'])
    assert.equal(woken, 2)
  })

  test('another process is woken for the topic that was published and for no other', async () => {
    await using wake = await open(home)
    await using other = await open(home)
    const wanted = hear(other, 'volumes')
    const unwanted = hear(other, 'workers')
    wake.publish(['volumes'])
    await wanted.atLeast(1)
    assert.equal(unwanted.count(), 0)
  })

  test('many publications in a window cost few notifications and lose no topic', async () => {
    await using wake = await open(home, 50)
    await using other = await open(home)
    const payloads = await listen(home)
    const heard = Array.from({ length: 300 }, (_, index) => hear(other, `run-${String(index)}`))
    for (let index = 0; index < 300; index++) wake.publish([`run-${String(index)}`])
    await Promise.all(heard.map((one) => one.atLeast(1)))
    assert.ok(payloads.list.length <= 3, `${String(payloads.list.length)} notifications`)
    await payloads.close()
  })

  test('more topics than a notification holds wake everybody', async () => {
    await using wake = await open(home)
    await using other = await open(home)
    const bystander = hear(other, 'bystander')
    wake.publish(Array.from({ length: 1000 }, (_, index) => `a-topic-of-some-length-${String(index)}`))
    await bystander.atLeast(1)
  })

  test('a payload that nobody understands wakes everybody', async () => {
    await using wake = await open(home)
    const heard = hear(wake, 'x')
    await onServer(home.adminUrl, (admin) => admin.query(`notify sandyard_wake, '{not json'`))
    await heard.atLeast(1)
  })

  test('a lost connection comes back, wakes everybody, and delivers what was published meanwhile', async () => {
    await using wake = await open(home)
    await using other = await open(home)
    const bystander = hear(other, 'bystander')
    const late = hear(other, 'late')
    await onServer(home.adminUrl, async (admin) => {
      await admin.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sandyard wake'`,
      )
    })
    await bystander.atLeast(1)
    const already = late.count()
    wake.publish(['late'])
    await late.atLeast(already + 1)
  })

  test('publishing while the database is away neither throws nor waits, and here everybody is still woken', async () => {
    const wake = await open(home)
    const heard = hear(wake, 'x')
    const gone = await makeEmptyDatabase()
    const orphan = await openNotifications({
      connectionString: gone.url,
      clock: systemClock,
      log: makeLog('silent'),
      windowMs: 5,
    })
    await gone.close()
    const local = hear(orphan, 'y')
    for (let index = 0; index < 100; index++) orphan.publish(['y'])
    assert.equal(local.count(), 100)
    assert.equal(heard.count(), 0)
    await orphan[Symbol.asyncDispose]()
    await wake[Symbol.asyncDispose]()
  })

  test('a subscriber that throws keeps nobody else from being woken', async () => {
    await using wake = await open(home)
    wake.subscribe('x', () => {
      throw new Error('a bug')
    })
    const heard = hear(wake, 'x')
    wake.publish(['x'])
    assert.equal(heard.count(), 1)
  })

  test('what was published just before closing still reaches the others', async () => {
    await using other = await open(home)
    const heard = hear(other, 'farewell')
    const wake = await open(home, 1000)
    const first = hear(other, 'first')
    wake.publish(['first'])
    await first.atLeast(1)
    wake.publish(['farewell']) // within the window of the first, so that it is not sent yet
    await wake[Symbol.asyncDispose]()
    await heard.atLeast(1)
  })
})

function open(home: TestDatabase, windowMs = 5): Promise<Notifications> {
  return openNotifications({ connectionString: home.url, clock: systemClock, log: makeLog('silent'), windowMs })
}

/** Counts the wake-ups of a topic; `atLeast` waits for them, 5 s at most. */
function hear(wake: Notifications, topic: string): { count(): number; atLeast(count: number): Promise<void> } {
  let heard = 0
  const limit = AbortSignal.timeout(5_000)
  wake.subscribe(topic, () => void heard++)
  return {
    count: () => heard,
    async atLeast(count) {
      while (heard < count) await systemClock.sleep(2, limit)
    },
  }
}

async function listen(home: TestDatabase): Promise<{ readonly list: readonly string[]; close(): Promise<void> }> {
  const list: string[] = []
  const client = new Client({ connectionString: home.url })
  await client.connect()
  client.on('notification', ({ payload }) => list.push(payload ?? ''))
  await client.query('listen sandyard_wake')
  return { list, close: () => client.end() }
}
