import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import type { StreamTicket } from '../../../src/contract/workers/worker-protocol.ts'
import { makeReplicas, RENEW_EVERY_MS, REPLICA_GONE_MS, type Replicas } from '../../../src/control/workers/replicas.ts'
import { requireSameSealingKey } from '../../../src/control/orgs/sealing-key.ts'
import { makeStreamTickets, type StreamTickets } from '../../../src/control/streams/stream-tickets.ts'
import { registerWorker } from '../../../src/control/workers/worker-join.ts'
import { asId, type RunId, type WorkerId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { keyFingerprint } from '../../../src/lib/seal.ts'
import { makePruneStreamTicketsLoop } from '../../../src/loops/prune.ts'
import { openNotifications, type Notifications } from '../../../src/store/postgres/notifications.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { makeTestClock, type TestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const log = makeLog('silent')
const STEP_MS = RENEW_EVERY_MS / 5

let control: TestControl
let worker: WorkerId
before(async () => {
  control = await makeTestControl()
  worker = await registerWorker(control.deps, { name: 'w1', credential: 'the-credential-of-this-worker' })
})
after(() => control.close())

/** A server process with its own clock and its own connection for notifications. */
type Process = {
  readonly clock: TestClock
  readonly replicas: Replicas
  readonly tickets: StreamTickets
  readonly own: StreamTicket[]
  /** Shuts the process down cleanly. */
  end(): Promise<void>
  /** Ends the process as a crash does: its row stays in `replicas`. */
  crash(): Promise<void>
}

const living = new Set<Process>()
afterEach(async () => {
  await Promise.all([...living].map((process) => process.end()))
  await control.deps.db.asSystem((q) => q.query({ text: 'DELETE FROM replicas' }))
  await control.deps.db.asSystem((q) => q.query({ text: 'DELETE FROM stream_tickets' }))
})

/**
 * The time at which the clock of the latest process started. Each new clock starts an hour earlier, as clocks of
 * machines differ.
 */
let startedAt = new Date('2026-11-21T12:00:00Z')
async function start(url: string | null): Promise<Process> {
  const { db, uuids } = control.deps
  startedAt = new Date(startedAt.getTime() - 3_600_000)
  const clock = makeTestClock(startedAt)
  const notifications: Notifications = await openNotifications({
    connectionString: control.databaseUrl,
    clock: systemClock,
    log,
    windowMs: 5,
  })
  const own: StreamTicket[] = []
  const self = { id: uuids.next(), version: '0.1.0', schema_version: 1, started_at: clock.now() }
  const replicas = makeReplicas({ db, clock, log, notifications }, self)
  const tickets = makeStreamTickets({ db, clock, log, notifications, replicas, ownTickets: () => own })
  await replicas.announce(url)
  const ending = new AbortController()
  const kept = tickets.run(ending.signal)
  const keeping = replicas.keepAnnounced(ending.signal)
  const close = async (): Promise<void> => {
    living.delete(process)
    ending.abort(new Error('over'))
    await Promise.all([kept, keeping])
    await notifications[Symbol.asyncDispose]()
  }
  const process: Process = {
    clock,
    replicas,
    tickets,
    own,
    end: close,
    async crash() {
      const { rows } = await db.asSystem((q) =>
        q.query({ text: 'SELECT * FROM replicas WHERE id = $1', values: [self.id] }),
      )
      await close()
      const [row] = rows
      assert.ok(row)
      await db.asSystem((q) =>
        q.query({
          text: 'INSERT INTO replicas (id, url, version, schema_version, started_at, seen_at) VALUES ($1, $2, $3, $4, $5, $6)',
          values: [row['id'], row['url'], row['version'], row['schema_version'], row['started_at'], row['seen_at']],
        }),
      )
    },
  }
  living.add(process)
  return process
}

/** Advances the clocks of these processes by `ms`. All others behave as if they were frozen. */
async function live(ms: number, ...processes: readonly Process[]): Promise<void> {
  for (let passed = 0; passed < ms; passed += STEP_MS) {
    for (const { clock } of processes) {
      await atRest(clock)
      clock.advance(STEP_MS)
      await atRest(clock)
    }
  }
}

function atRest(clock: TestClock): Promise<boolean> {
  return waitUntil(() => clock.sleepers === 2)
}

/**
 * Starts two processes. The first one knows the second one before any clock advances: with a notification that arrives
 * later, it would count the second one as live for longer than the tests advance its clock.
 */
async function startTwo(): Promise<readonly [Process, Process]> {
  const [a, b] = [await start(A), await start(B)]
  await waitUntil(() => a.replicas.count === 2)
  return [a, b]
}

function ticketOf(name: string): StreamTicket {
  return { ticket: name, kind: 'agent', run_id: asId<RunId>(control.deps.uuids.next()) }
}

/** Makes a process wait for a stream of the worker: announces a ticket, as its relay does. */
function leave(process: Process, name: string): StreamTicket {
  const ticket = ticketOf(name)
  process.own.push(ticket)
  process.tickets.announce(worker, ticket)
  return ticket
}

function shown(process: Process): readonly (readonly [string, string | undefined])[] {
  return process.tickets.openTickets(worker).map(({ ticket, url }) => [ticket, url])
}

const [A, B, C] = ['http://10.0.0.1:8080', 'http://10.0.0.2:8080', 'http://10.0.0.3:8080'] as const

test('each process knows all live ones, in one order, however far their clocks differ', async () => {
  const [a, b, c] = [await start(A), await start(B), await start(null)]
  await live(RENEW_EVERY_MS, a, b, c)
  for (const { replicas } of [a, b, c]) assert.deepEqual([replicas.count, replicas.urls], [3, [A, B]])
})

test('a frozen process counts as gone after a while, and counts as live again once it continues', async () => {
  const [a, b] = await startTwo()
  await live(REPLICA_GONE_MS - RENEW_EVERY_MS, a)
  assert.equal(a.replicas.count, 2)
  await live(2 * RENEW_EVERY_MS, a)
  assert.deepEqual([a.replicas.count, a.replicas.urls], [1, [A]])
  await live(2 * RENEW_EVERY_MS, b, a)
  assert.equal(a.replicas.count, 2)
  assert.equal(b.replicas.count, 2)
})

test('a process that shuts down is gone at the next read, and one that restarts replaces its own row', async () => {
  const [a, b] = [await start(A), await start(B)]
  await b.end()
  await live(RENEW_EVERY_MS, a)
  assert.equal(a.replicas.count, 1)
  const c = await start(C)
  await c.crash()
  const again = await start(C)
  await live(RENEW_EVERY_MS, a)
  assert.deepEqual([a.replicas.count, again.replicas.count], [2, 2])
})

test('the row of a crashed process is removed in the end', async () => {
  const [a, b] = [await start(A), await start(B)]
  await b.crash()
  await live(90_000, a)
  const { rows } = await control.deps.db.asSystem((q) => q.query<{ url: string }>({ text: 'SELECT url FROM replicas' }))
  assert.deepEqual(rows, [{ url: A }])
})

test('every process shows a ticket to the worker, with the URL of the process that waits for the stream, until the ticket is used', async () => {
  const [a, b] = [await start(A), await start(B)]
  await live(RENEW_EVERY_MS, a, b)
  const { run_id } = { run_id: null, ...leave(a, 't1') }
  await waitUntil(() => shown(b).length === 1)
  assert.deepEqual(b.tickets.openTickets(worker), [{ ticket: 't1', url: A, kind: 'agent', run_id }])
  assert.deepEqual(shown(a), [['t1', A]])
  a.own.pop()
  a.tickets.withdraw('t1')
  await waitUntil(async () => (await rowsLeft()) === 0)
  b.clock.advance(2_000)
  await waitUntil(() => shown(b).length === 0)
})

test('a new process and its tickets are known to the others at once', async () => {
  const [a, b] = [await start(A), await start(B)]
  await waitUntil(() => a.replicas.count === 2) // no clock has advanced, so a notification caused this
  assert.deepEqual(
    [a.replicas.urls, b.replicas.urls],
    [
      [A, B],
      [A, B],
    ],
  )
  leave(b, 't0')
  await waitUntil(() => shown(a).length === 1)
})

test('a ticket of a process that counts as gone is shown as soon as that process counts as live again', async () => {
  const [a, b] = await startTwo()
  await live(REPLICA_GONE_MS + RENEW_EVERY_MS, a)
  assert.equal(a.replicas.count, 1)
  leave(b, 't6')
  await waitUntil(async () => (await rowsLeft()) === 1)
  assert.deepEqual(shown(a), [])
  await live(RENEW_EVERY_MS, b)
  await live(2 * RENEW_EVERY_MS, a)
  await waitUntil(() => shown(a).length === 1)
})

test('no ticket leads to a process that is gone, and its rows are deleted', async () => {
  const [a, b] = [await start(A), await start(B)]
  await live(RENEW_EVERY_MS, a, b)
  leave(a, 't2')
  await waitUntil(() => shown(b).length === 1)
  await a.crash()
  await live(REPLICA_GONE_MS + RENEW_EVERY_MS, b)
  assert.deepEqual(shown(b), [])
  assert.equal(await rowsLeft(), 1)
  const later = makeTestClock(new Date('2026-11-22T12:00:00Z'))
  await makePruneStreamTicketsLoop({ db: control.deps.db, clock: later }).run(new AbortController().signal)
  assert.equal(await rowsLeft(), 0)
})

test('a process that is alone or has no URL writes no tickets', async () => {
  const a = await start(null)
  leave(a, 't3')
  assert.deepEqual(shown(a), [['t3', undefined]])
  const b = await start(B)
  await live(RENEW_EVERY_MS, a)
  leave(a, 't4')
  leave(b, 't5')
  await waitUntil(async () => (await rowsLeft()) === 1)
})

test('once a process runs, a process with another sealing key is refused, and one with the same key is not', async () => {
  const { db } = control.deps
  const [first, second] = [keyFingerprint(systemRandom.bytes(32)), keyFingerprint(systemRandom.bytes(32))]
  await requireSameSealingKey(db, first)
  await requireSameSealingKey(db, second) // a new key is accepted as long as nothing is sealed and no process runs
  await requireSameSealingKey(db, second)
  await start(A)
  await assert.rejects(requireSameSealingKey(db, first), /SANDYARD_SECRET_KEY/)
  await requireSameSealingKey(db, second)
})

async function rowsLeft(): Promise<number> {
  const { rowCount } = await control.deps.db.asSystem((q) => q.query({ text: 'SELECT FROM stream_tickets' }))
  return rowCount
}
