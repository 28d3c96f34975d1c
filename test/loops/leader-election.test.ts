import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { makeLog } from '../../src/lib/log.ts'
import {
  LEADER_LEASE_MS,
  LEADER_STOP_MS,
  LeadershipLost,
  makeLeaderElection,
  type Leadership,
} from '../../src/loops/leader-election.ts'
import { openDatabase, type Database } from '../../src/store/postgres/database.ts'
import * as leads from '../../src/store/workers/leads.ts'
import { makeTestDatabase, type TestDatabase } from '../support/postgres.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

const log = makeLog('silent')
const STEP_MS = 500

let home: TestDatabase
let db: Database
before(async () => {
  home = await makeTestDatabase()
  db = await openDatabase({
    connectionString: home.url,
    tenantPoolSize: 1,
    systemPoolSize: 8,
    statementTimeoutMs: 10_000,
    log,
  })
})
after(async () => {
  await db.close()
  await home.close()
})

/** A candidate for the leadership, with its own clock. */
type Process = {
  readonly clock: TestClock
  readonly ending: AbortController
  readonly topics: string[]
  leadership: Leadership | null
  /** Whether its database is out of reach. */
  isCut: boolean
  /** The number of its queries that have no answer yet. */
  queries: number
}

let made = 0
function start(name: string): Process {
  const clock = makeTestClock()
  const ending = new AbortController()
  const process: Process = { clock, ending, topics: [], leadership: null, isCut: false, queries: 0 }
  const own: Database = {
    ...db,
    async asSystem(fn) {
      if (process.isCut) throw new Error('cut off')
      process.queries += 1
      try {
        return await db.asSystem(fn)
      } finally {
        process.queries -= 1
      }
    },
  }
  const notifications = {
    publish: (topics: readonly string[]) => void process.topics.push(...topics),
    subscribe: () => () => undefined,
  }
  const holder = `00000000-0000-7000-8000-${String(++made).padStart(12, '0')}`
  const wait = makeLeaderElection({ db: own, clock, log, notifications, holder }, name)
  void wait(ending.signal).then(
    (leadership) => {
      process.leadership = leadership
    },
    () => undefined, // the wait rejects when the test ends the process
  )
  return process
}

async function end(...processes: readonly Process[]): Promise<void> {
  for (const one of processes) {
    one.ending.abort(new Error('over'))
    one.isCut = false
    await one.leadership?.[Symbol.asyncDispose]()
  }
}

/** Advances the clocks of processes step by step. After each step, waits until the processes wait for their clocks again. */
async function live(ms: number, ...processes: readonly Process[]): Promise<void> {
  for (let passed = 0; passed < ms; passed += STEP_MS) {
    for (const { clock } of processes) clock.advance(STEP_MS)
    do await nextTurn()
    while (processes.some(({ queries }) => queries > 0))
  }
}

/** Advances the clock of a process until it leads. On a busy machine its statements may need more steps of the clock. */
async function liveUntilLeading(process: Process): Promise<Leadership> {
  return waitUntil(async () => {
    await live(STEP_MS, process)
    return process.leadership ?? false
  })
}

async function write(leadership: Leadership): Promise<void> {
  await db.transaction('system', (tx) => leadership.fence(tx))
}

async function leadOf(name: string): Promise<leads.LeadRow | null> {
  return db.asSystem((q) => leads.find(q, name))
}

test('a leader with heartbeats stays the leader however long others wait', async () => {
  const first = start('kept')
  await waitUntil(() => first.leadership !== null)
  const second = start('kept')
  await live(5 * LEADER_LEASE_MS, first, second)
  assert.equal(second.leadership, null)
  assert.equal(first.leadership?.lost.aborted, false)
  await end(first, second)
})

test('a paused leader is replaced after one lease by the challenger’s clock, and writes nothing more', async () => {
  const first = start('paused')
  const old = await waitUntil(() => first.leadership ?? false)
  const second = start('paused')
  await live(LEADER_LEASE_MS - 2 * STEP_MS, second) // the first process's clock stands still: it is paused
  assert.equal(second.leadership, null)
  await write(old)
  const fresh = await liveUntilLeading(second)
  await assert.rejects(write(old), LeadershipLost)
  assert.ok(old.lost.aborted)
  await write(fresh)
  assert.equal((await leadOf('paused'))?.epoch, 2)
  await old[Symbol.asyncDispose]() // releasing the old leadership must not end the new one
  assert.equal((await leadOf('paused'))?.epoch, 2)
  await end(second)
})

test('a leader without a database stops by itself before another may begin', async () => {
  const first = start('cut')
  const old = await waitUntil(() => first.leadership ?? false)
  const second = start('cut')
  await live(4 * STEP_MS, first, second)
  first.isCut = true
  await live(LEADER_STOP_MS + STEP_MS, first, second)
  assert.ok(old.lost.aborted)
  assert.equal(second.leadership, null)
  await liveUntilLeading(second)
  await end(first, second)
})

test('a leader leads again as soon as its database is back, and its old leadership stays over', async () => {
  const first = start('away')
  const old = await waitUntil(() => first.leadership ?? false)
  const before = await leadOf('away')
  first.isCut = true
  await live(LEADER_STOP_MS + STEP_MS, first)
  assert.ok(old.lost.aborted)
  first.isCut = false
  const notifications = { publish: () => undefined, subscribe: () => () => undefined }
  const ask = makeLeaderElection({ db, clock: first.clock, log, notifications, holder: before?.holder ?? '' }, 'away')
  const fresh = await ask(first.ending.signal) // resolves although no time passes on the process's clock
  await write(fresh)
  await assert.rejects(write(old), LeadershipLost)
  assert.equal((await leadOf('away'))?.epoch, 2)
  await fresh[Symbol.asyncDispose]()
})

test('a process that is alone with its database leads at once, whoever led before it', async () => {
  const first = start('alone')
  const old = await waitUntil(() => first.leadership ?? false)
  const notifications = { publish: () => undefined, subscribe: () => () => undefined }
  const deps = {
    db,
    clock: first.clock,
    log,
    notifications,
    holder: '01900000-0000-7000-8000-000000000001',
    isAlone: true,
  }
  const fresh = await makeLeaderElection(deps, 'alone')(first.ending.signal) // although no time passes on its clock
  await assert.rejects(write(old), LeadershipLost)
  await write(fresh)
  await fresh[Symbol.asyncDispose]()
  await end(first)
})

test('leadership that is given up is free at once, and others are notified', async () => {
  const first = start('given')
  await waitUntil(() => first.leadership !== null)
  const second = start('given')
  await live(2 * STEP_MS, second)
  assert.equal(second.leadership, null)
  await end(first)
  assert.deepEqual(first.topics, ['lead:given'])
  await live(2 * STEP_MS, second)
  await waitUntil(() => second.leadership !== null)
  await end(second)
})

test('of many candidates for a free leadership, exactly one gets it', async () => {
  const all = Array.from({ length: 8 }, () => start('raced'))
  await waitUntil(() => all.some(({ leadership }) => leadership !== null))
  await live(3 * STEP_MS, ...all)
  assert.equal(all.filter(({ leadership }) => leadership !== null).length, 1)
  await end(...all)
})

test('the next leader begins after the fenced transactions of the old one, and a heartbeat waits for none of them', async () => {
  const first = start('fenced')
  const old = await waitUntil(() => first.leadership ?? false)
  const seen = await leadOf('fenced')
  assert.ok(seen?.holder)
  const mandate = { name: 'fenced', holder: seen.holder, epoch: seen.epoch }
  const { promise: mayCommit, resolve: commit } = Promise.withResolvers<void>()
  const { promise: isFenced, resolve: noteFenced } = Promise.withResolvers<void>()
  const order: string[] = []
  const writing = db.transaction('system', async (tx) => {
    await old.fence(tx)
    noteFenced()
    await mayCommit
    order.push('written')
  })
  await isFenced
  const taking = (async () => {
    const epoch = await db.asSystem(async (q) => {
      const now = await leads.find(q, 'fenced')
      return leads.acquire(q, { name: 'fenced', holder: mandate.holder, seen: now })
    })
    order.push('taken')
    return epoch
  })()
  const waiting = `SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
  await waitUntil(async () => (await db.asSystem((q) => q.query({ text: waiting }))).rowCount > 0)
  commit()
  await writing
  assert.equal(await taking, 2)
  assert.deepEqual(order, ['written', 'taken'])
  await db.transaction('system', async (tx) => {
    assert.ok(await leads.lockIfHeld(tx, { ...mandate, epoch: 2 }))
    // The heartbeat uses another connection, and succeeds without waiting for the transaction.
    assert.ok(await db.asSystem((q) => leads.renew(q, { ...mandate, epoch: 2 })))
  })
  await end(first)
})
