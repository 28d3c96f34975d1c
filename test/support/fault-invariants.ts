/** The invariants after a failure of PostgreSQL, and the time limits of the recovery. */
import assert from 'node:assert/strict'
import { systemClock } from '../../src/lib/clock.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { call, listAll, type SandboxBody } from './api.ts'
import { createNamed, startLoad, observedState, type FaultLoad, type ExpectedState } from './fault-load.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'
import { onServer } from './postgres.ts'
import { noteFault } from './reliability.ts'
import { DEMO_IMAGE } from './sdk.ts'
import type { RealServer } from './server.ts'
import { waitUntil } from './wait.ts'

type Api = Pick<RealServer, 'url' | 'key'>

/** The time limit of a recovery, counted from the return of the database. Measured: 0.1 to 3 s (2026-11). */
export const RECOVERY_LIMIT_MS = 15_000
const CONVERGENCE_LIMIT_MS = 30_000
const STEP_MS = 20

/**
 * What `assertSurvivesFault` measured: the times of the recovery, the counts of the consistency check, the load during the
 * fault, and how many requests of the load got 503 (`refused`).
 */
export type SurvivalResult = Recovery & ConsistencyCounts & { readonly load: FaultLoad; readonly refused: number }

/**
 * Runs clients, injects a fault, waits for the recovery and asserts that nothing acknowledged was lost or done twice.
 * `inject` must resolve when the database is back.
 */
export async function assertSurvivesFault(
  server: Api,
  adminUrl: string,
  inject: (load: FaultLoad) => Promise<void>,
): Promise<SurvivalResult> {
  const load = startLoad(server)
  try {
    await waitForServedRequests(load, 50)
    await inject(load)
    const recovery = await waitForRecovery(server)
    await waitForServedRequests(load, 50)
    const settled = await assertConsistentAfterFault(server, load, adminUrl)
    return { ...recovery, ...settled, load, refused: load.answers.get(503) ?? 0 }
  } finally {
    await load.stop()
  }
}

/**
 * Waits until the server has answered `count` more requests of a load with success. Also resolves if the load has
 * failed.
 */
export async function waitForServedRequests(load: FaultLoad, count: number): Promise<void> {
  const served = (): number => [200, 201, 202, 204].reduce((sum, status) => sum + (load.answers.get(status) ?? 0), 0)
  const from = served()
  await waitUntil(() => load.hasFailed || served() - from >= count, CONVERGENCE_LIMIT_MS)
}

/**
 * How long after the return of the database the first request succeeded, `/readyz` was ready, and a new sandbox ran, in
 * milliseconds.
 */
export type Recovery = { readonly firstAnswerMs: number; readonly readyMs: number; readonly runningMs: number }

/**
 * Waits until a list succeeds, `/readyz` is ready, and a new sandbox runs, which needs loops, waits and a worker. Call
 * it when the database is back. Rejects after `limitMs`.
 */
export async function waitForRecovery(server: Api, limitMs = RECOVERY_LIMIT_MS): Promise<Recovery> {
  const fromMs = systemClock.monotonicMs()
  const since = (): number => Math.round(systemClock.monotonicMs() - fromMs)
  const until = async (what: string, isSo: () => Promise<boolean>): Promise<number> => {
    while (!(await isSo())) {
      assert.ok(
        since() < limitMs * TIMEOUT_FACTOR,
        `${what}: not within ${String(since())} ms of the database's return`,
      )
      await systemClock.sleep(STEP_MS)
    }
    return since()
  }
  const firstAnswerMs = await until('a list', async () => (await call(server, 'list_sandboxes')).status === 200)
  const ready = until('readyz', async () => {
    const { status, body } = await fetch(`${server.url}/readyz`)
    await body?.cancel()
    return status === 200
  })
  const runningMs = await until('a sandbox that runs', () => runsOne(server))
  return { firstAnswerMs, readyMs: await ready, runningMs }
}

async function runsOne(server: Api): Promise<boolean> {
  const body = { name: `probe-${systemRandom.bytes(6).toString('hex')}`, image: DEMO_IMAGE, resources: SMALL }
  const query = { start: 'true', wait_for: 'running', wait_timeout: '10' }
  const made = await call(server, 'create_sandbox', { query, body })
  if (made.isRefusal) return false
  const isRunning = made.body.status === 'running'
  await call(server, 'delete_sandbox', { params: { sandbox_id: made.body.id } })
  return isRunning
}

const SMALL = { vcpus: 1, memory_mib: 64, disk_size_mib: 64 }

/**
 * The number of sandboxes that were checked after a fault. `unsure`: requests without an answer left several states
 * possible.
 */
export type ConsistencyCounts = { readonly sandboxes: number; readonly asAcknowledged: number; readonly unsure: number }

/**
 * Ends the load and asserts that every sandbox is in a state that its client expects, that none exists twice, and that
 * no event was recorded twice. Repeats each create with an unknown result by name; afterwards the sandbox must exist
 * once.
 */
export async function assertConsistentAfterFault(
  server: Api,
  load: FaultLoad,
  adminUrl: string,
): Promise<ConsistencyCounts> {
  await load.stop()
  const unsure = load.expected.filter(({ id, possible }) => id === null && possible.size > 1)
  for (const one of unsure) await createNamed(server, call, one)
  const resting = await untilResting(server)
  assert.equal(new Set(resting.map(({ name }) => name)).size, resting.length, 'a name is listed twice')
  const byName = new Map(resting.map((sandbox) => [sandbox.name, sandbox]))
  let asAcknowledged = 0
  for (const { name, possible } of load.expected) {
    const found = byName.get(name)
    const told = `${name} is ${observedState(found)} (${String(found?.last_failure_message)}); its client expects ${[...possible].join(' or ')}`
    assert.ok(isOneOf(observedState(found), possible), told)
    asAcknowledged += 1
  }
  assert.deepEqual(await doubledEvents(adminUrl), [], 'a change was written twice')
  const own = new Set(load.expected.map(({ name }) => name))
  for (const { id } of resting.filter(({ name }) => own.has(name)))
    await call(server, 'delete_sandbox', { params: { sandbox_id: id } }) // frees capacity for the next sandboxes
  return { sandboxes: load.expected.length, asAcknowledged, unsure: unsure.length }
}

async function untilResting(server: Api): Promise<readonly SandboxBody[]> {
  const fromMs = systemClock.monotonicMs()
  for (;;) {
    const all = await listAll(server)
    const moving = all.filter(({ status }) => status === 'starting' || status === 'stopping')
    if (moving.length === 0) return all
    const tookMs = systemClock.monotonicMs() - fromMs
    assert.ok(
      tookMs < CONVERGENCE_LIMIT_MS * TIMEOUT_FACTOR,
      `never came to rest: ${JSON.stringify(moving.slice(0, 3))}`,
    )
    await systemClock.sleep(STEP_MS)
  }
}

function isOneOf(seen: string, possible: ReadonlySet<ExpectedState>): boolean {
  for (const state of possible) if (state === seen) return true
  return false
}

/**
 * Finds events that were recorded more than once for a run or, for creations, for a sandbox. Channel events may repeat.
 */
async function doubledEvents(adminUrl: string): Promise<readonly object[]> {
  const { rows } = await onServer(adminUrl, (admin) =>
    admin.query<{ event_type: string; of: string; times: string }>(
      `SELECT event_type, payload ->> 'run_id' AS of, count(*) AS times FROM events WHERE payload ->> 'run_id' IS NOT NULL
         AND event_type NOT LIKE 'sandbox_channel_%' GROUP BY 1, 2
       HAVING count(*) > 1
       UNION ALL
       SELECT event_type, payload ->> 'sandbox_id', count(*) FROM events WHERE event_type = 'sandbox_created' GROUP BY 1, 2
       HAVING count(*) > 1`,
    ),
  )
  return rows
}

/**
 * Writes a row for docs/reliability.md about a fault that was injected `injected` times: the worst figures of all
 * survivals.
 */
export function noteSurvival(fault: string, survivals: readonly SurvivalResult[], injected: number): void {
  const most = (of: (one: SurvivalResult) => number): string => String(Math.round(Math.max(...survivals.map(of))))
  const sum = (of: (one: SurvivalResult) => number): string => String(survivals.reduce((all, one) => all + of(one), 0))
  noteFault({
    area: 'postgresql',
    fault,
    injected,
    checked:
      'acknowledged sandboxes exist once, as acknowledged, no event twice; requests get an answer or 503 with ' +
      'Retry-After; everything works within 15 s of the return',
    found:
      `${sum(({ refused }) => refused)} requests refused; ${sum((one) => one.asAcknowledged)} of ${sum(({ sandboxes }) => sandboxes)} sandboxes as acknowledged, ` +
      `${sum(({ unsure }) => unsure)} created again by name; ` +
      `first answer after ${most(({ firstAnswerMs }) => firstAnswerMs)} ms, ` +
      `a sandbox runs after ${most(({ runningMs }) => runningMs)} ms, slowest request ${most(({ load }) => load.slowestMs)} ms`,
  })
}
