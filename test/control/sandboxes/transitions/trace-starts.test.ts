import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { makeControlDeps } from '../../../../src/control/make-deps.ts'
import { moveSandbox } from '../../../../src/control/sandboxes/transitions/transition.ts'
import type { TransitionRequest } from '../../../../src/control/sandboxes/transitions/transition-step.ts'
import { makeStartTracer } from '../../../../src/control/sandboxes/transitions/trace-starts.ts'
import { registerWorker } from '../../../../src/control/workers/worker-join.ts'
import { SYSTEM_ACTOR } from '../../../../src/domain/orgs/caller.ts'
import type { Clock } from '../../../../src/lib/clock.ts'
import { systemRandom } from '../../../../src/lib/random.ts'
import { makeTracer, type Span } from '../../../../src/lib/tracing/tracer.ts'
import { makeTestControl, type TestControl } from '../../../support/control.ts'
import { createTestSandbox } from '../../../support/quota-world.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl({ leavesPlacementToLoop: true })
})
after(() => control.close())

const TRACE_PARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
const cause = { actor: SYSTEM_ACTOR, code: 'worker_report' } as const

/** A server process with a tracer of its own. */
function makeProcess(clock: Pick<Clock, 'now'> = control.deps.clock) {
  const spans: Span[] = []
  const tracer = makeTracer({ random: systemRandom, sampler: () => true, onSpan: (span) => spans.push(span) })
  return { spans, deps: makeControlDeps({ ...control.deps, ...makeStartTracer(tracer, clock) }) }
}

/** Makes the registered workers offer capacity. */
async function offerCapacity(): Promise<void> {
  await control.asOwner(
    `UPDATE workers SET vcpus = 4, memory_mib = 1024, disk_mib = 10000, lease_expires_at = now() + interval '30 s',
       driver = '{"name": "simulated", "abilities": [], "default_disk_mib": 10}'`,
  )
}

test('the leader traces the placement, and the process with the worker’s report the start and the phase that failed', async () => {
  const [leader, reporter] = [makeProcess(), makeProcess()]
  const worker = await registerWorker(control.deps, { name: 'w1', credential: 'credential-of-w1' })
  await offerCapacity()
  const { id: sandbox_id } = await createTestSandbox(control.deps, control.caller, {
    start: true,
    traceParent: TRACE_PARENT,
  })
  const move = (deps: typeof leader.deps, request: Pick<TransitionRequest, 'event' | 'worker' | 'start' | 'cause'>) =>
    moveSandbox(deps, { sandbox_id, run_id: null, ...request })
  await move(leader.deps, { event: 'placed', cause, worker: { id: worker, name: 'w1' } })
  const image = { phase: 'image', offset_ms: 0, duration_ms: 90_000, has_failed: true } as const // longer than it was placed
  await move(reporter.deps, {
    event: 'worker_start_failed',
    cause: { ...cause, message: 'no such image' },
    start: { driver: 'oci', phases: [image] },
  })
  assert.deepEqual(
    leader.spans.map(({ name, parentSpanId, error }) => ({ name, parentSpanId, error })),
    [{ name: 'placement', parentSpanId: '00f067aa0ba902b7', error: null }],
  )
  const [delivery, start, phase, report] = reporter.spans
  assert.deepEqual(
    reporter.spans.map(({ name, error }) => [name, error]),
    [
      ['delivery', null],
      ['start', 'no such image'],
      ['start image', 'no such image'],
      ['report', null],
    ],
  )
  assert.equal(phase?.parentSpanId, start?.spanId)
  for (const { fromMs, untilMs } of reporter.spans) {
    assert.ok(fromMs <= untilMs)
    assert.ok(fromMs >= (delivery?.fromMs ?? 0) && untilMs <= (report?.untilMs ?? 0), 'a phase is outside of its start')
  }
  assert.equal(report?.fromMs, start?.untilMs)
})

test('a run without a trace leaves no spans', async () => {
  const { spans, deps } = makeProcess()
  const { id: sandbox_id } = await createTestSandbox(control.deps, control.caller, { start: true })
  const message = 'its volumes are on different workers'
  await moveSandbox(deps, { sandbox_id, run_id: null, event: 'ended_badly', cause: { ...cause, message } })
  assert.deepEqual(spans, [])
})

test('a report that says how long ago the start began shows how long it took to arrive', async () => {
  const LATER_MS = 1_000
  const { spans, deps } = makeProcess({ now: () => new Date(control.deps.clock.now().getTime() + LATER_MS) })
  const worker = await registerWorker(control.deps, { name: 'w2', credential: 'credential-of-w2' })
  await offerCapacity()
  const { id: sandbox_id } = await createTestSandbox(deps, control.caller, { start: true, traceParent: TRACE_PARENT })
  await moveSandbox(deps, { sandbox_id, run_id: null, event: 'placed', cause, worker: { id: worker, name: 'w2' } })
  const phases = [{ phase: 'runtime', offset_ms: 0, duration_ms: 20 }] as const
  const start = { driver: 'oci', phases, beganAt: control.deps.clock.now() }
  await moveSandbox(deps, { sandbox_id, run_id: null, event: 'worker_running', cause, start })
  const lastsMs = new Map(spans.map(({ name, fromMs, untilMs }) => [name, untilMs - fromMs]))
  assert.equal(lastsMs.get('start'), 20)
  assert.equal(lastsMs.get('start runtime'), 20)
  assert.ok((lastsMs.get('report') ?? 0) >= LATER_MS - 20)
})
