/** Which answers change the runs of a worker that has two reports in flight, when two server processes answer them. */
import assert from 'node:assert/strict'
import { afterEach, beforeEach, test } from 'node:test'
import type { DesiredRun, SyncAnswer, SyncRequest } from '../../../src/contract/workers/worker-protocol.ts'
import { asId, type WorkerId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { runAgent } from '../../../src/worker/agent/agent.ts'
import type { ControlPlane } from '../../../src/worker/agent/control-plane.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld, type SimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import { makeNoLogs } from '../../../src/worker/logs/logs.ts'
import { makeNoMetrics } from '../../../src/worker/metrics/sandbox-metrics.ts'
import { makeDesiredRun } from '../../support/desired-run.ts'
import { rejectOnAbort } from '../../support/reject-on-abort.ts'
import { EMPTY_ANSWER } from '../../support/report.ts'
import { waitUntil } from '../../support/wait.ts'
import { NO_VOLUMES } from '../../fault/network.ts'

/** A sync that the worker sent and that the test answers. */
type Sync = { readonly request: SyncRequest; readonly answer: (answer: Partial<SyncAnswer>) => void }

let machine: SimulatedWorld
let syncs: Sync[]
let end: () => Promise<void>

beforeEach(() => {
  machine = makeSimulatedWorld()
  syncs = []
  const ending = new AbortController()
  const controlPlane: ControlPlane = {
    sync(request, signal) {
      const { promise, resolve } = Promise.withResolvers<SyncAnswer>()
      syncs.push({ request, answer: (answer) => resolve({ ...EMPTY_ANSWER, ...answer }) })
      return Promise.race([promise, rejectOnAbort(signal)])
    },
    dial: () => Promise.reject(new Error('no streams here')),
    fetchSnapshot: () => Promise.reject(new Error('no snapshots here')),
    standBy: (signal) => rejectOnAbort(signal),
    releaseBytes: () => undefined,
  }
  const ended = runAgent(
    {
      worker_id: asId<WorkerId>('w'),
      incarnation: '00000000-0000-7000-8000-000000000001',
      driver: makeSimulatedDriver({ world: machine, clock: systemClock }),
      storage: NO_VOLUMES,
      storageSampleMs: 60_000,
      openFiles: () => Promise.reject(new Error('no volumes here')),
      logs: makeNoLogs(),
      metrics: makeNoMetrics(),
      controlPlane,
      clock: systemClock,
      log: makeLog('silent'),
      fencesItself: false,
    },
    ending.signal,
  )
  end = async () => {
    ending.abort(new Error('the test is over'))
    await ended
  }
})
afterEach(() => end())

/** The sync of this number, once the worker has sent it. */
const sync = (number: number): Promise<Sync> => waitUntil(() => syncs[number - 1])

/** The run's phase on the machine. Undefined: it isn't there. */
const phaseOf = ({ run_id }: DesiredRun): string | undefined => machine.runs.get(run_id)?.observed.phase

/** The whole answer of a process: exactly these runs. */
const whole = (answered_by: string, desired_version: string, ...desired_runs: readonly DesiredRun[]) =>
  ({ answered_by, desired_version, desired_runs }) satisfies Partial<SyncAnswer>

/** Lets the worker have `run` by an answer of process A, and two more reports in flight. Resolves with these. */
async function withRun(run: DesiredRun): Promise<readonly [Sync, Sync]> {
  ;(await sync(1)).answer(whole('A', 'v1', run))
  const earlier = await sync(2)
  await waitUntil(() => phaseOf(run) === 'running')
  const later = await sync(3) // that the run runs
  assert.deepEqual(
    [earlier.request.known_desired_version, later.request.known_desired_version, syncs.length],
    ['v1', 'v1', 3],
  )
  return [earlier, later]
}

/** Answers the last report, which must know `version`, without news, and resolves once the worker sends another. */
async function answerOf(version: string): Promise<void> {
  const next = await waitUntil(() => syncs.find(({ request }) => request.seq > 3 && syncs.length === request.seq))
  assert.equal(next.request.known_desired_version, version)
  next.answer({})
  await sync(next.request.seq + 1)
}

test('a run that an answer brought is not removed by what another process had read before', async () => {
  const [kept, added] = [makeDesiredRun(), makeDesiredRun()]
  const [earlier, later] = await withRun(kept)
  earlier.answer(whole('B', 'v2', kept, added))
  await waitUntil(() => phaseOf(added) === 'running')
  later.answer(whole('A', 'v1', kept))
  await answerOf('v2')
  assert.deepEqual([phaseOf(kept), phaseOf(added)], ['running', 'running'])
})

test('a run that an answer stopped is not started by what another process had read before', async () => {
  const [kept, stopped, added] = [makeDesiredRun(), makeDesiredRun(), makeDesiredRun()]
  const [earlier, later] = await withRun(kept)
  earlier.answer(whole('B', 'v2', kept, { ...stopped, desired_status: 'stopped' }, added))
  await waitUntil(() => phaseOf(added) === 'running')
  later.answer(whole('A', 'v1', kept, stopped))
  await answerOf('v2')
  assert.equal(phaseOf(stopped), undefined)
})

test('nor is one that an answer no longer had, and that the worker removed', async () => {
  const run = makeDesiredRun()
  const [earlier, later] = await withRun(run)
  earlier.answer(whole('B', 'v2'))
  await waitUntil(() => phaseOf(run) === undefined)
  later.answer(whole('A', 'v1', run))
  await answerOf('v2')
  assert.equal(phaseOf(run), undefined)
})

test('what one process answers to two reports in flight is applied in their order, as changes of what each report knew', async () => {
  const [first, second, third] = [makeDesiredRun(), makeDesiredRun(), makeDesiredRun()]
  const [earlier, later] = await withRun(first)
  earlier.answer({ ...whole('A', 'v2', second), changes_only: { stopping_runs: [], gone_runs: [] } })
  await waitUntil(() => phaseOf(second) === 'running')
  later.answer({ ...whole('A', 'v3', third), changes_only: { stopping_runs: [], gone_runs: [first.run_id] } }) // `second` came and went
  await waitUntil(() => phaseOf(third) === 'running')
  await waitUntil(() => phaseOf(first) === undefined && phaseOf(second) === undefined)
  await waitUntil(() => syncs.find(({ request }) => request.known_desired_version === 'v3'))
})

test('an answer of any process is applied to a report that was made after the last change', async () => {
  const [run, added] = [makeDesiredRun(), makeDesiredRun()]
  const [earlier, later] = await withRun(run)
  earlier.answer({})
  later.answer(whole('B', 'v2', run, added))
  await waitUntil(() => phaseOf(added) === 'running')
  assert.equal(phaseOf(run), 'running')
})
