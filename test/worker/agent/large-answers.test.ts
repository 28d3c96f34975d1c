/** Answers to a worker whose runs have more bytes than one answer may have. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { deleteSandbox } from '../../../src/control/sandboxes/delete-sandbox.ts'
import type { SyncAnswer } from '../../../src/contract/workers/worker-protocol.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { ControlPlane } from '../../../src/worker/agent/control-plane.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { makeSimulatedWorld } from '../../../src/worker/drivers/simulated-world.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

let world: WorkerWorld
before(async () => {
  world = await makeWorkerWorld()
})
after(() => world.close())

const KIB = 1024
/** Two of them fill an answer. */
const LARGE = { env: [{ key: 'LARGE', value: 'v'.repeat(700 * KIB) }] }
const SANDBOXES = 5

/** A control plane whose answers with runs are noted. */
function noteAnswers(controlPlane: ControlPlane): { readonly noting: ControlPlane; readonly answers: SyncAnswer[] } {
  const answers: SyncAnswer[] = []
  const noting: ControlPlane = {
    ...controlPlane,
    async sync(...sent) {
      const answer = await controlPlane.sync(...sent)
      if (answer.desired_runs !== null) answers.push(answer)
      return answer
    },
  }
  return { noting, answers }
}

test('a new worker process gets large runs in several answers, and leaves those that it has as they are meanwhile', async () => {
  const machine = makeSimulatedWorld()
  const startsOf: SandboxId[] = []
  const openDriver = () => {
    const driver = makeSimulatedDriver({ world: machine, clock: systemClock })
    return {
      ...driver,
      start(...[run, signal]: Parameters<typeof driver.start>) {
        startsOf.push(run.sandbox_id)
        return driver.start(run, signal)
      },
    }
  }
  const held = (): readonly string[] =>
    [...machine.runs.values()]
      .filter(({ observed }) => observed.phase === 'running')
      .map(({ observed }) => observed.sandbox_id)
  const ids: SandboxId[] = []
  for (let nth = 0; nth < SANDBOXES; nth++) ids.push((await world.create(LARGE)).id)

  const first = noteAnswers(world.connect())
  const endFirst = world.runWorker(openDriver(), { controlPlane: first.noting })
  await waitUntil(() => held().length === SANDBOXES)
  await waitUntil(async () =>
    (await Promise.all(ids.map((id) => world.statusOf(id)))).every(({ status }) => status === 'running'),
  )
  await endFirst()
  const [deleted = assert.fail(), ...kept] = ids
  await deleteSandbox(world.control.deps, world.control.caller, { id: deleted })

  const second = noteAnswers(world.connect())
  const endSecond = world.runWorker(openDriver(), { controlPlane: second.noting })
  await waitUntil(() => second.answers.at(-1)?.later_runs === undefined && !held().includes(deleted))
  await endSecond()

  assert.deepEqual(held().toSorted(), kept.toSorted())
  assert.deepEqual(startsOf.toSorted(), ids.toSorted(), 'each was started once')
  for (const { answers } of [first, second]) {
    const sent = answers.map(({ desired_runs }) => (desired_runs ?? []).map(({ sandbox_id }) => sandbox_id))
    assert.ok(
      sent.every((some) => some.length <= 2),
      'no answer has more than fit',
    )
    // The answer to a report that was in flight may repeat what the one before it had.
    assert.deepEqual([...new Set(sent.flat())].toSorted(), ids.toSorted())
  }
  assert.equal(second.answers[0]?.later_runs?.length, 3)
})
