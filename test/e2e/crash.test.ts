import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { randomBelow, systemRandom } from '../../src/lib/random.ts'
import { call, listAll, type SandboxBody } from '../support/api.ts'
import { findContainers, findContainersWithoutRun } from '../support/leftovers.ts'
import { runMsb } from '../support/msb.ts'
import { noteFault } from '../support/reliability.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { readRows } from '../support/server-database.ts'
import { startServer, TEST_WARM, whyNoServer, type RealServer } from '../support/server.ts'

// A power cut, here `kill -9` of the server and its PostgreSQL, must not lose anything that was acknowledged.

/** How many times the test kills the server under load. SANDYARD_CRASH_ROUNDS overrides the number. */
const ROUNDS = Number(process.env['SANDYARD_CRASH_ROUNDS'] ?? '20')
/** The number of clients. Each has one request in flight at a time. */
const CLIENTS = 4
/** The maximum number of sandboxes that one client has at a time. */
const SANDBOXES_EACH = 4
const LOAD_MOST_MS = 600
const SETTLE_LIMIT_MS = 30_000

/**
 * The states of a sandbox that its client considers possible. After a request without an answer there are several,
 * because the server may have carried it out.
 */
type Known = { readonly id: string; readonly name: string; wanted: Wanted; readonly possible: Set<Wanted> }
type Wanted = 'created' | 'running' | 'stopped' | 'deleted'

describe('kill -9 of the server and its PostgreSQL', { skip: whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer({ SANDYARD_STOP_GRACE_MS: '500', SANDYARD_VCPU_OVERCOMMIT: '100' })
  })
  after(() => server.close())

  test('the restarted server takes over a running sandbox, whose files, processes and boot time are unchanged', async () => {
    const inside = (script: string) => runMsb(server, ['exec', 'survivor', '--', 'sh', '-c', script])
    assert.equal((await runMsb(server, ['create', '--name', 'survivor', '--tmpfs', '/scratch', DEMO_IMAGE])).code, 0)
    const look = 'cat /scratch/file; pgrep -f "^sleep 98765"; stat -c %Z /proc/1; cut -d" " -f22 /proc/1/stat'
    await inside('echo here > /scratch/file; setsid sleep 98765 > /dev/null 2>&1 < /dev/null &')
    const first = await inside(look)
    assert.match(first.stdout, /^here\n\d+\n/)
    const startedBefore = await startedAt(server, 'survivor')
    await server.kill9()
    await server.start()
    const second = await inside(look)
    assert.equal(second.stdout, first.stdout, second.stderr)
    assert.deepEqual(await startedAt(server, 'survivor'), startedBefore)
    assert.equal((await runMsb(server, ['rm', 'survivor'])).code, 0)
  })

  test(`${String(ROUNDS)} times under load: no acknowledged sandbox is lost or duplicated, and no container is left over`, async () => {
    const known = Array.from({ length: CLIENTS }, (): Known[] => [])
    const pending = new Set<string>()
    for (let round = 1; round <= ROUNDS; round++) {
      const stop = new AbortController()
      const clients = known.map((own) => loadUntilDead(server, own, pending, stop.signal))
      await systemClock.sleep(50 + randomBelow(systemRandom, LOAD_MOST_MS))
      await server.kill9()
      stop.abort()
      await Promise.all(clients)
      await server.start()
      assertNoneLost(known.flat(), await listAll(server), pending)
    }
    const settled = await settle(server)
    assertNoneLost(known.flat(), settled, pending)
    for (const { id, name, possible } of known.flat()) {
      const found = settled.find((sandbox) => sandbox.id === id)
      const status = found?.status ?? 'deleted'
      const told = `${name} is ${status} (${String(found?.last_failure_message)}); its client expects ${[...possible].join(' or ')}`
      assert.ok(isOneOf(status, possible), told)
    }
    const wantedRuns = await readRows<{ id: string }>(server, 'SELECT id FROM runs WHERE ended_at IS NULL')
    assert.deepEqual(findContainers(server.dataDir).toSorted(), wantedRuns.map(({ id }) => id).toSorted())
    const warm = findContainersWithoutRun(server.dataDir)
    assert.ok(warm.length <= TEST_WARM, `${String(warm.length)} containers have no run`)
    const running = settled.filter(({ status }) => status === 'running')
    assert.equal(running.length, wantedRuns.length)
    const execs = await Promise.all(running.slice(0, 4).map(({ name }) => runMsb(server, ['exec', name, '--', 'true'])))
    assert.deepEqual(
      execs.map(({ code, stderr }) => `${String(code)}${stderr}`),
      execs.map(() => '0'),
    )
    noteFault({
      area: 'postgresql',
      fault:
        'kill -9 of `sandyard up` and of its PostgreSQL at once, as a power cut would, under load with real sandboxes',
      injected: ROUNDS,
      checked:
        'after each: every acknowledged sandbox is listed once; at the end each is in a status that its client expects, and the containers are those of the open runs',
      found: `${String(known.flat().length)} acknowledged sandboxes, none lost or doubled; ${String(wantedRuns.length)} continued to run, no container left over`,
    })
  })
})

function isOneOf(status: string, possible: ReadonlySet<Wanted>): boolean {
  for (const wanted of possible) if (wanted === status) return true
  return false
}

async function startedAt(server: RealServer, name: string): Promise<unknown> {
  const answer = await call(server, 'get_sandbox_by_name', { params: { name } })
  return answer.isRefusal ? answer.text : [answer.body.status, answer.body.started_at]
}

/** Asserts that the list contains every acknowledged sandbox once, no deleted sandbox, and no sandbox that nobody requested. */
function assertNoneLost(known: readonly Known[], seen: readonly SandboxBody[], pending: ReadonlySet<string>): void {
  assert.equal(new Set(seen.map(({ id }) => id)).size, seen.length, 'a sandbox is listed twice')
  assert.equal(new Set(seen.map(({ name }) => name)).size, seen.length, 'a name is listed twice')
  for (const { id, name, possible } of known) {
    const isThere = seen.some((sandbox) => sandbox.id === id)
    if (!possible.has('deleted')) assert.ok(isThere, `${name} was acknowledged and is lost`)
    if (possible.size === 1 && possible.has('deleted')) assert.ok(!isThere, `${name} was deleted and is back`)
  }
  for (const { id, name } of seen)
    assert.ok(known.some((one) => one.id === id) || pending.has(name), `nobody created ${name}`)
}

/** Runs one client, which sends random operations one after another until the server stops answering. */
async function loadUntilDead(
  server: RealServer,
  own: Known[],
  pending: Set<string>,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const unsure = own.find(({ possible }) => possible.size > 1)
    const live = own.filter(({ wanted }) => wanted !== 'deleted')
    const chosen = live[randomBelow(systemRandom, Math.max(1, live.length))]
    const isNew = chosen === undefined || (live.length < SANDBOXES_EACH && randomBelow(systemRandom, 2) === 0)
    try {
      if (unsure !== undefined) await change(server, unsure, 'delete_sandbox')
      else if (isNew) await create(server, own, pending)
      else await change(server, chosen, CHANGES[randomBelow(systemRandom, CHANGES.length)] ?? 'stop_sandbox')
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error
      return // the connection broke: the server is dead
    }
  }
}

async function create(server: RealServer, own: Known[], pending: Set<string>): Promise<void> {
  const name = `crash-${systemRandom.bytes(6).toString('hex')}`
  const isStarted = randomBelow(systemRandom, 4) > 0
  pending.add(name)
  const body = { name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
  const answer = await call(server, 'create_sandbox', { query: { start: String(isStarted) }, body })
  assert.ok(!answer.isRefusal, answer.text)
  pending.delete(name)
  const wanted = isStarted ? 'running' : 'created'
  own.push({ id: answer.body.id, name, wanted, possible: new Set([wanted]) })
}

const NEXT = { start_sandbox: 'running', stop_sandbox: 'stopped', delete_sandbox: 'deleted' } as const
const CHANGES = ['start_sandbox', 'stop_sandbox', 'delete_sandbox'] as const

async function change(server: RealServer, one: Known, id: keyof typeof NEXT): Promise<void> {
  const isUnsure = one.possible.size > 1
  one.possible.add(NEXT[id])
  const answer = await call(server, id, { params: { sandbox_id: one.id } })
  // The sandbox was deleted by an earlier request, whose answer never arrived.
  const isGone = answer.status === 404 && isUnsure
  if (answer.isRefusal && !isGone) assert.equal(answer.status, 409, answer.text)
  else one.wanted = NEXT[id]
  one.possible.clear()
  one.possible.add(one.wanted)
}

/** Waits until no sandbox is in the middle of a transition between two statuses. */
async function settle(server: RealServer): Promise<readonly SandboxBody[]> {
  const deadlineMs = systemClock.monotonicMs() + SETTLE_LIMIT_MS
  for (;;) {
    // Deleted sandboxes are in no list, but their runs must stop too.
    const open = await readRows<{ id: string; status: string }>(
      server,
      'SELECT r.id, s.status FROM runs r JOIN sandboxes s ON s.id = r.sandbox_id WHERE r.ended_at IS NULL',
    )
    const moving = open.filter(({ status }) => status !== 'running')
    const isQuiet = moving.length === 0 && findContainers(server.dataDir).length === open.length
    if (isQuiet) return await listAll(server) // a new list: the earlier one may show a sandbox in transition
    assert.ok(systemClock.monotonicMs() < deadlineMs, `never settled: ${JSON.stringify(moving.slice(0, 3))}`)
    await systemClock.sleep(50)
  }
}
