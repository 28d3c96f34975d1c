import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { openNotifications, type Notifications } from '../../../src/store/postgres/notifications.ts'
import { makeEmptyDatabase, onServer, type TestDatabase } from '../../support/postgres.ts'
import { waitUntil } from '../../support/wait.ts'

describe('notifications', () => {
  let home: TestDatabase
  before(async () => {
    home = await makeEmptyDatabase()
  })
  after(() => home.close())

  test('a subscriber in the same process is notified at once, once, and not after it has unsubscribed', async () => {
    await using notifications = await open(home)
    let notified = 0
    const leave = notifications.subscribe('sandboxes', () => void notified++)
    notifications.publish(['sandboxes'])
    assert.equal(notified, 1)
    await using other = await open(home)
    const heard = hear(other, 'sandboxes')
    notifications.publish(['sandboxes'])
    await heard.atLeast(1)
    assert.equal(notified, 2) // PostgreSQL delivers the process's own NOTIFY too, which is ignored
    leave()
    notifications.publish(['sandboxes'])
    assert.equal(notified, 2)
  })

  test('another process is notified of the published topic and of no other', async () => {
    await using notifications = await open(home)
    await using other = await open(home)
    const wanted = hear(other, 'volumes')
    const unwanted = hear(other, 'workers')
    notifications.publish(['volumes'])
    await wanted.atLeast(1)
    assert.equal(unwanted.count(), 0)
  })

  test('many publications in a window send few NOTIFYs and lose no topic', async () => {
    await using notifications = await open(home, 50)
    await using other = await open(home)
    const payloads = await listen(home)
    const heard = Array.from({ length: 300 }, (_, index) => hear(other, `run-${String(index)}`))
    for (let index = 0; index < 300; index++) notifications.publish([`run-${String(index)}`])
    await Promise.all(heard.map((one) => one.atLeast(1)))
    assert.ok(payloads.list.length <= 3, `${String(payloads.list.length)} notifications`)
    await payloads.close()
  })

  test('if the topics don’t fit in one NOTIFY, all subscribers are notified', async () => {
    await using notifications = await open(home)
    await using other = await open(home)
    const bystander = hear(other, 'bystander')
    notifications.publish(Array.from({ length: 1000 }, (_, index) => `a-topic-of-some-length-${String(index)}`))
    await bystander.atLeast(1)
  })

  test('a payload that can’t be parsed notifies all subscribers', async () => {
    await using notifications = await open(home)
    const heard = hear(notifications, 'x')
    await onServer(home.adminUrl, (admin) => admin.query(`notify sandyard_wake, '{not json'`))
    await heard.atLeast(1)
  })

  test('a lost connection is opened again, all subscribers are notified, and what was published in the meantime is sent', async () => {
    await using notifications = await open(home)
    await using other = await open(home)
    const bystander = hear(other, 'bystander')
    const late = hear(other, 'late')
    await onServer(home.adminUrl, async (admin) => {
      await admin.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sandyard notifications'`,
      )
    })
    await bystander.atLeast(1)
    const already = late.count()
    notifications.publish(['late'])
    await late.atLeast(already + 1)
  })

  test('publishing during an outage neither throws nor waits, and subscribers of this process are still notified', async () => {
    const notifications = await open(home)
    const heard = hear(notifications, 'x')
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
    await notifications[Symbol.asyncDispose]()
  })

  test('a subscriber that throws does not keep others from being notified', async () => {
    await using notifications = await open(home)
    notifications.subscribe('x', () => {
      throw new Error('a bug')
    })
    const heard = hear(notifications, 'x')
    notifications.publish(['x'])
    assert.equal(heard.count(), 1)
  })

  test('what was published just before closing still reaches other processes', async () => {
    await using other = await open(home)
    const heard = hear(other, 'farewell')
    const notifications = await open(home, 1000)
    const first = hear(other, 'first')
    notifications.publish(['first'])
    await first.atLeast(1)
    notifications.publish(['farewell']) // within the window of the first publication, so it is not sent yet
    await notifications[Symbol.asyncDispose]()
    await heard.atLeast(1)
  })
})

function open(home: TestDatabase, windowMs = 5): Promise<Notifications> {
  return openNotifications({ connectionString: home.url, clock: systemClock, log: makeLog('silent'), windowMs })
}

/** Counts the notifications of a topic; `atLeast` waits for them. */
function hear(notifications: Notifications, topic: string): { count(): number; atLeast(count: number): Promise<void> } {
  let heard = 0
  notifications.subscribe(topic, () => void heard++)
  return {
    count: () => heard,
    async atLeast(count) {
      await waitUntil(
        () => heard >= count,
        60_000,
        () => `${String(heard)} of ${String(count)} notifications`,
      )
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
