import assert from 'node:assert/strict'
import { duplexPair } from 'node:stream'
import { text } from 'node:stream/consumers'
import { after, afterEach, before, test } from 'node:test'
import { createWebSocketStream } from 'ws'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import { openChannel } from '../../../src/control/streams/open-channel.ts'
import { startSandbox } from '../../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import {
  WORKER_PROTOCOL_VERSION,
  type SyncAnswer,
  type SyncRequest,
} from '../../../src/contract/workers/worker-protocol.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import { RENEW_DEADLINE_MS } from '../../../src/domain/workers/lease.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { ControlPlane } from '../../../src/worker/agent/control-plane.ts'
import { SYNC_RETRY_MS } from '../../../src/worker/agent/sync-loop.ts'
import { withoutPhases } from '../../../src/worker/agent/start-reports.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { behaviourByImage } from '../../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld, type SimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import { rejectOnAbort } from '../../support/reject-on-abort.ts'
import { reportOf } from '../../support/report.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'
import { MACHINE_RESTARTED } from '../../../src/worker/drivers/shared/run-records.ts'
import { makeDesiredRun } from '../../support/desired-run.ts'
import { TIMEOUT_FACTOR } from '../../support/timeout-factor.ts'
import { makeWorkerWorld, type RunWorkerOptions, type WorkerWorld } from '../../support/worker-world.ts'

const never = new AbortController().signal
const behaviourOf = behaviourByImage([
  { image: /missing/, behaviour: { startFailure: { reason: 'image', message: 'no such image' } } },
  { image: /slow/, behaviour: { startDelayMs: 60_000 } },
  { image: /stubborn/, behaviour: { ignoresTerm: true } },
])

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

/** The simulated machine of the worker. Each test has its own. */
let machine: SimulatedWorld = makeSimulatedWorld()
let endLife: () => Promise<void> = () => Promise.resolve()
afterEach(async () => {
  await endLife()
  await world.control.deps.db.asSystem((q) =>
    q.query({ text: `UPDATE runs SET ended_at = now() WHERE ended_at IS NULL` }),
  )
  await world.control.deps.db.asSystem((q) =>
    q.query({ text: `UPDATE sandboxes SET status = 'stopped', status_reason = NULL` }),
  )
  machine = makeSimulatedWorld()
})

function openDriver(): Driver {
  return makeSimulatedDriver({ world: machine, clock: systemClock, behaviourOf })
}

/** Runs the worker on the simulated machine. */
function live(driver: Driver = openDriver(), options: RunWorkerOptions = {}): void {
  endLife = world.runWorker(driver, options)
}

async function waitForStatus(id: SandboxId, status: string): Promise<{ readonly last_failure_message: string | null }> {
  return waitUntil(async () => {
    const row = await world.statusOf(id)
    return row.status === status && row
  })
}

/** Runs another sandbox to its end, so that a wrong reaction of the worker would show by then. */
async function runAnother(): Promise<void> {
  await waitForStatus((await world.create()).id, 'running')
}

function heldOf(id: SandboxId): readonly string[] {
  return [...machine.runs.values()]
    .filter(({ observed }) => observed.sandbox_id === id)
    .map(({ observed }) => observed.phase)
}

test('a sandbox is started, stopped, started again and deleted, and then its disk is discarded', async () => {
  live()
  const { deps, caller } = world.control
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  assert.deepEqual(heldOf(id), ['running'])
  assert.equal((await stopSandbox(deps, caller, { id })).status, 'stopping')
  await waitForStatus(id, 'stopped')
  await waitUntil(() => heldOf(id).length === 0)
  assert.ok(machine.stored.has(id), 'the disk of a stopped sandbox stays')
  await startSandbox(deps, caller, { id }, { waitMs: null, signal: never })
  await waitForStatus(id, 'running')
  await deleteSandbox(deps, caller, { id })
  await waitForStatus(id, 'stopped')
  await waitUntil(() => heldOf(id).length === 0 && !machine.stored.has(id))
})

test('a failed start is reported with its reason, and nothing of its run is left', async () => {
  live()
  const { id } = await world.create({ image: 'registry.example/missing' })
  assert.equal((await waitForStatus(id, 'failed')).last_failure_message, 'no such image')
  await waitUntil(() => heldOf(id).length === 0)
})

test('a workload that ends by itself is reported within a second, with its exit code', async () => {
  live()
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  const run = [...machine.runs.keys()].find((key) => machine.runs.get(key)?.observed.sandbox_id === id)
  assert.ok(run !== undefined)
  const fromMs = systemClock.monotonicMs()
  machine.end(run, { kind: 'exited', code: 3 })
  assert.equal((await waitForStatus(id, 'failed')).last_failure_message, 'the workload exited with code 3')
  assert.ok(systemClock.monotonicMs() - fromMs < 1_000 * TIMEOUT_FACTOR)
})

test('a worker process that replaces another adopts its runs, and removes those that are not desired', async () => {
  live()
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  await endLife()
  const stray = makeDesiredRun()
  await openDriver().start(stray, never)
  live()
  await waitUntil(() => !machine.runs.has(stray.run_id))
  assert.deepEqual(heldOf(id), ['running'])
  assert.equal((await world.statusOf(id)).status, 'running')
})

test('a start that a shutdown cancelled is no failure: the next incarnation begins it again', async () => {
  const driver = openDriver()
  live(driver)
  const { id } = await world.create({ image: 'registry.example/slow' })
  await waitUntil(() => heldOf(id).includes('starting'))
  const ended = endLife()
  await driver.close()
  await ended
  assert.deepEqual(heldOf(id), ['ended'])
  live(makeSimulatedDriver({ world: machine, clock: systemClock }))
  await waitForStatus(id, 'running')
})

test('a stop during a start ends the start, and is no failure', async () => {
  live()
  const { deps, caller } = world.control
  const { id } = await world.create({ image: 'registry.example/slow' })
  await waitUntil(() => heldOf(id).includes('starting'))
  await stopSandbox(deps, caller, { id })
  assert.equal((await waitForStatus(id, 'stopped')).last_failure_message, null)
  await waitUntil(() => heldOf(id).length === 0)
})

test('a stop also ends a start that the driver does not list yet, and no other run of the sandbox starts at the same time', async () => {
  const driver = openDriver()
  const { promise: mayEnd, resolve } = Promise.withResolvers<void>()
  let unlisted = 0
  live({
    ...driver,
    async start(run, signal) {
      if (unlisted > 0 || !run.spec.image.endsWith('unlisted')) return driver.start(run, signal)
      unlisted += 1
      await new Promise<void>((done) => signal.addEventListener('abort', () => done(), { once: true }))
      await mayEnd
    },
  })
  const { deps, caller } = world.control
  const { id } = await world.create({ image: 'registry.example/unlisted' })
  await waitUntil(() => unlisted === 1)
  await stopSandbox(deps, caller, { id })
  await runAnother()
  assert.equal((await world.statusOf(id)).status, 'stopping')
  resolve()
  await waitForStatus(id, 'stopped')
  await startSandbox(deps, caller, { id }, { waitMs: null, signal: never })
  await waitForStatus(id, 'running')
})

test('a worker continues while the control plane is unreachable, and later reports the changes', async () => {
  live()
  const { id } = await world.create()
  const { id: other } = await world.create()
  await Promise.all([waitForStatus(id, 'running'), waitForStatus(other, 'running')])
  await world.goAway()
  const run = [...machine.runs.values()].find(({ observed }) => observed.sandbox_id === id)
  assert.ok(run)
  machine.end(run.observed.run_id, { kind: 'exited', code: 0 })
  await world.comeBack()
  await waitForStatus(id, 'stopped')
  assert.equal((await world.statusOf(other)).status, 'running')
  assert.deepEqual(heldOf(other), ['running'])
})

test('a worker that can’t sync destroys its runs before its lease ends, counted from the last report that prolonged the lease', async () => {
  const clock = makeTestClock()
  const real = world.connect()
  let isCut = false
  const held: (() => void)[] = []
  const controlPlane: ControlPlane = {
    ...real,
    async sync(request, signal) {
      if (isCut) throw new Error('cut off')
      const answer = await real.sync(request, signal)
      await new Promise<void>((resolve) => held.push(resolve)) // delays the answer until `release`
      return answer
    },
  }
  live(openDriver(), { clock, controlPlane, fencesItself: true })
  const release = (): boolean => {
    for (const go of held.splice(0)) go()
    return false
  }
  const { id } = await world.create()
  await waitUntil(() => release() || heldOf(id).includes('running'))
  await waitUntil(async () => release() || (await world.statusOf(id)).status === 'running')
  isCut = true
  clock.advance(RENEW_DEADLINE_MS - 2_000)
  release() // a delayed answer extends the deadline from the time of its report, not from its arrival
  clock.advance(1_000)
  await waitUntil(() => clock.sleepers > 0)
  assert.deepEqual(heldOf(id), ['running'])
  await waitUntil(() => {
    clock.advance(500)
    return heldOf(id).length === 0
  })
  assert.ok(clock.monotonicMs() < RENEW_DEADLINE_MS + 5_000)
})

test('a machine that restarted and reaches the control plane late still reports why its runs ended', async () => {
  live()
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  await endLife()
  const run = [...machine.runs.values()].find(({ observed }) => observed.sandbox_id === id)
  assert.ok(run)
  machine.end(run.observed.run_id, MACHINE_RESTARTED)
  const clock = makeTestClock()
  const real = world.connect()
  let isCut = true
  const controlPlane: ControlPlane = {
    ...real,
    sync: (...args) => (isCut ? Promise.reject(new Error('no network yet')) : real.sync(...args)),
  }
  const stray = makeDesiredRun()
  await openDriver().start(stray, never)
  live(openDriver(), { clock, controlPlane, fencesItself: true })
  clock.advance(RENEW_DEADLINE_MS)
  await waitUntil(() => {
    clock.advance(500)
    return !machine.runs.has(stray.run_id) // the fence has acted
  })
  isCut = false
  const failed = await waitUntil(async () => {
    clock.advance(500)
    const row = await world.statusOf(id)
    return row.status === 'failed' && row
  })
  assert.equal(
    failed.last_failure_message,
    'the machine was restarted (reboot or power loss) while the sandbox was running',
  )
})

test('an answer that arrives after the answer to a later report changes nothing', async () => {
  const real = world.connect()
  const { promise: letGo, resolve } = Promise.withResolvers<void>()
  let late: SyncRequest | null = null
  const controlPlane: ControlPlane = {
    ...real,
    async sync(request, signal): Promise<SyncAnswer> {
      const answer = await real.sync(request, signal)
      if (late !== null || answer.desired_runs?.length !== 0) return answer
      late = request // delays this answer, which has no desired runs, until after answers that have one
      await letGo
      return answer
    },
  }
  const driver = openDriver()
  live(driver, { controlPlane })
  await waitUntil(() => late !== null)
  await driver.start(makeDesiredRun(), never) // while one sync is unanswered, the worker sends another one only for a change
  const { id } = await world.create()
  await waitUntil(() => heldOf(id).includes('running'))
  resolve()
  await runAnother()
  assert.deepEqual(heldOf(id), ['running'])
})

for (const failures of [0, 3])
  test(`a sync without an answer does not prevent the report of changes, after ${String(failures)} reports that fail`, () =>
    reportBesideSilence(failures))

async function reportBesideSilence(failures: number): Promise<void> {
  const real = world.connect()
  let syncs = 0
  live(openDriver(), {
    controlPlane: {
      ...real,
      async sync(request, signal) {
        syncs += 1
        if (syncs > 1 + failures) return real.sync(request, signal)
        if (syncs > 1) throw new Error('a process that has just stopped')
        return new Promise((_, reject) => {
          signal.addEventListener('abort', () => reject(new Error('given up')), { once: true })
        })
      },
    },
  })
  await waitUntil(() => syncs > 0)
  const stray = makeDesiredRun() // a change to report: a run that the control plane does not desire
  await openDriver().start(stray, never)
  const fromMs = systemClock.monotonicMs()
  await runAnother()
  assert.ok(systemClock.monotonicMs() - fromMs < (3_000 + failures * SYNC_RETRY_MS) * TIMEOUT_FACTOR)
}

test('a report that arrives after a later one changes nothing', async () => {
  live()
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  await endLife()
  const connection = world.connect()
  const life = world.control.deps.uuids.next()
  const report = async (seq: number, seen: SyncRequest['observed_runs']): Promise<SyncAnswer> =>
    connection.sync(reportOf(world.worker_id, { incarnation: life, seq, observed_runs: seen }), never)
  await report(
    2,
    [...machine.runs.values()].map(({ observed }) => observed),
  )
  const { desired_runs: wanted, discard_sandboxes: discard, streams } = await report(1, [])
  assert.deepEqual({ wanted, discard, streams }, { wanted: null, discard: [], streams: [] })
  assert.equal((await world.statusOf(id)).status, 'running')
  await report(3, [])
  assert.equal((await world.statusOf(id)).last_failure_message, 'the worker no longer has this run')
})

test('a disk is discarded only after its run was removed', async () => {
  live()
  const { deps, caller } = world.control
  const { id } = await world.create({ image: 'registry.example/stubborn' })
  await waitForStatus(id, 'running')
  await deleteSandbox(deps, caller, { id })
  await waitUntil(() => heldOf(id).includes('stopping'))
  assert.ok(machine.stored.has(id))
  await waitUntil(() => heldOf(id).length === 0)
  await waitUntil(() => !machine.stored.has(id))
})

test('a failed step is retried, but not in a tight loop', async () => {
  const driver = openDriver()
  let tries = 0
  live({
    ...driver,
    remove(run) {
      tries += 1
      return tries <= 2 ? Promise.reject(new Error('the machine is busy')) : driver.remove(run)
    },
  })
  const stray = makeDesiredRun()
  const fromMs = systemClock.monotonicMs()
  await driver.start(stray, never)
  await waitUntil(() => !machine.runs.has(stray.run_id))
  assert.equal(tries, 3)
  assert.ok(systemClock.monotonicMs() - fromMs > 900)
})

test('a channel is dialled once, its bytes go both ways, and a waiting ticket costs no further syncs', async () => {
  const driver = openDriver()
  const real = world.connect()
  let dials = 0
  let syncs = 0
  const { promise: mayDial, resolve } = Promise.withResolvers<void>()
  live(
    {
      ...driver,
      openChannel() {
        const [client, agent] = duplexPair()
        agent.pipe(agent)
        return Promise.resolve(client)
      },
    },
    {
      controlPlane: {
        fetchSnapshot: () => Promise.reject(new Error('there are no snapshots')),
        releaseBytes: () => undefined,
        standBy: rejectOnAbort,
        sync(request, signal) {
          syncs += 1
          return real.sync(request, signal)
        },
        async dial(ticket, signal) {
          dials += 1
          await mayDial
          return real.dial(ticket, signal)
        },
      },
    },
  )
  const { deps, caller } = world.control
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  const opened = openChannel(deps, caller, id, never)
  await waitUntil(() => dials === 1)
  const before = syncs
  await runAnother()
  assert.ok(syncs - before <= 10, `${String(syncs - before)} syncs while a ticket waits`)
  resolve()
  const { socket, close } = await opened
  const channel = createWebSocketStream(socket)
  const echoed = new Promise<string>((done) => channel.once('data', (data: Buffer) => done(data.toString())))
  channel.write('hello')
  assert.equal(await echoed, 'hello')
  close()
  await waitUntil(() => world.relay.openTicketCount === 0)
  assert.equal(dials, 1)
})

test('a channel uses a connection on which the worker stood by, without a ticket or a sync, and the worker stands by again', async () => {
  const driver = openDriver()
  const real = world.connect()
  live(
    {
      ...driver,
      openChannel() {
        const [client, agent] = duplexPair()
        agent.end('hello')
        return Promise.resolve(client)
      },
    },
    {
      controlPlane: {
        ...real,
        dial: () => Promise.reject(new Error('a ticket was dialled')),
      },
    },
  )
  const { deps, caller } = world.control
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  for (let round = 0; round < 10; round++) {
    await waitUntil(() => world.relay.standbyCount === 4)
    const { socket, close } = await openChannel(deps, caller, id, never)
    assert.equal(await text(createWebSocketStream(socket)), 'hello')
    close()
  }
})

test('a report is not sent again while it has no answer', async () => {
  const driver = openDriver()
  const real = world.connect()
  const inFlight: string[] = []
  let repeated = 0
  let notify = (): void => undefined
  live(
    {
      ...driver,
      watch(onChange) {
        notify = onChange
        return driver.watch(onChange)
      },
    },
    {
      controlPlane: {
        ...real,
        async sync(request, signal, onRecorded) {
          const { seq: _seq, known_generation: _generation, ...rest } = request
          const content = JSON.stringify({ ...rest, observed_runs: rest.observed_runs.map(withoutPhases) })
          if (inFlight.at(-1) === content) repeated += 1
          inFlight.push(content)
          try {
            return await real.sync(request, signal, onRecorded)
          } finally {
            inFlight.splice(inFlight.indexOf(content), 1)
          }
        },
      },
    },
  )
  const { id } = await world.create()
  await waitForStatus(id, 'running')
  for (let news = 0; news < 5; news++) {
    notify()
    await runAnother()
  }
  assert.equal(repeated, 0)
})

test('a worker is refused without its credential, with the id of another worker, and with another protocol version', async () => {
  const body = (changes: object): string => JSON.stringify({ ...reportOf(world.worker_id), ...changes })
  const post = async (credential: string, changes: object): Promise<number> => {
    const headers = { authorization: `Bearer ${credential}`, 'content-type': 'application/json' }
    const url = `${world.url}/worker/v1/sync`
    return (await fetch(url, { method: 'POST', headers, body: body(changes) })).status
  }
  assert.equal(await post('wrong', {}), 401)
  assert.equal(await post(world.credential, { worker_id: '00000000-0000-7000-8000-000000000002' }), 400)
  assert.equal(await post(world.credential, { protocol: WORKER_PROTOCOL_VERSION + 1 }), 400)
  assert.equal(await post(world.credential, { unknown: true }), 400)
})
