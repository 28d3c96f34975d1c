import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import fc from 'fast-check'
import { deleteBatch } from '../../../../src/control/sandboxes/delete-sandbox.ts'
import { moveAll } from '../../../../src/control/sandboxes/transitions/transition-batches.ts'
import { moveSandbox } from '../../../../src/control/sandboxes/transitions/transition.ts'
import type { TransitionRequest } from '../../../../src/control/sandboxes/transitions/transition-step.ts'
import { moveEach } from '../../../../src/control/sandboxes/transitions/transition-batches.ts'
import { SYSTEM_ACTOR } from '../../../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../../../src/domain/ids.ts'
import type { TransitionEvent } from '../../../../src/domain/sandboxes/lifecycle.ts'
import { makeTestControl, type TestControl } from '../../../support/control.ts'
import { createTestSandbox } from '../../../support/quota-world.ts'

let control: TestControl
before(async () => {
  control = await makeTestControl()
})
after(() => control.close())

async function createSome(count: number): Promise<readonly SandboxId[]> {
  const made = await Promise.all(
    Array.from({ length: count }, () => createTestSandbox(control.deps, control.caller, { start: false })),
  )
  return made.map(({ id }) => id)
}

function ask(sandbox_id: SandboxId, event: TransitionEvent): TransitionRequest {
  return { sandbox_id, run_id: null, event, cause: { actor: SYSTEM_ACTOR, code: 'requested' } }
}

/** A transition that PostgreSQL can't write, because its message contains NUL, which jsonb can't hold. */
function askTheImpossible(sandbox_id: SandboxId): TransitionRequest {
  const outcome = { kind: 'start_failed', reason: 'image', message: '\0' } as const
  return { ...ask(sandbox_id, 'ended_badly'), outcome }
}

type Seen = { readonly status: string; readonly runs: number; readonly open: number; readonly events: number }

async function look(ids: readonly SandboxId[]): Promise<readonly Seen[]> {
  const { rows } = await control.deps.db.asSystem((q) =>
    q.query<Seen>({
      text: `SELECT s.status, (SELECT count(*) FROM runs r WHERE r.sandbox_id = s.id) AS runs,
               (SELECT count(*) FROM runs r WHERE r.sandbox_id = s.id AND r.ended_at IS NULL) AS open,
               (SELECT count(*) FROM events e WHERE e.sandbox_id = s.id) AS events
             FROM unnest($1::uuid[]) WITH ORDINALITY AS w(id, place) JOIN sandboxes s ON s.id = w.id ORDER BY w.place`,
      values: [ids],
    }),
  )
  return rows
}

const kindsOf = (settled: Awaited<ReturnType<typeof moveEach>>): readonly string[] =>
  settled.map((one) => ('error' in one ? 'error' : one.answer.kind))

test('a row that can’t be written does not block the others of its batch, and is counted as failed', async () => {
  const ids = await createSome(5)
  await moveAll(
    control.deps,
    ids.map((id) => ask(id, 'start_admitted')),
  )
  const requests = ids.map((id, index) => (index === 2 ? askTheImpossible(id) : ask(id, 'stop_requested')))
  const silent = { ...control.deps, log: { ...control.deps.log, error: () => undefined } }
  assert.equal(await moveAll(silent, requests), 1)
  const statuses = (await look(ids)).map(({ status }) => status)
  assert.deepEqual(statuses, ['stopped', 'stopped', 'starting', 'stopped', 'stopped'])
})

test('two batches over the same rows in opposite orders both end, and each row moves once', async () => {
  const ids = await createSome(40)
  for (const event of ['start_admitted', 'stop_requested', 'start_admitted'] as const) {
    const forwards = ids.map((id) => ask(id, event))
    const answers = await Promise.all([
      moveEach(control.deps, forwards),
      moveEach(control.deps, forwards.toReversed()),
      Promise.all(forwards.map((request) => moveSandbox(control.deps, request))),
    ])
    const kinds = [...kindsOf(answers[0]), ...kindsOf(answers[1]), ...answers[2].map(({ kind }) => kind)]
    assert.equal(kinds.filter((kind) => kind === 'moved').length, ids.length)
    assert.equal(kinds.filter((kind) => kind === 'stale').length, 2 * ids.length)
  }
  const seen = await look(ids)
  assert.ok(seen.every(({ status, runs, open }) => status === 'starting' && runs === 2 && open === 1))
})

test('several requests for one sandbox in a batch run in their order', async () => {
  const [id] = await createSome(1)
  assert.ok(id)
  const events = ['start_admitted', 'start_admitted', 'stop_requested', 'start_admitted'] as const
  const settled = await moveEach(
    control.deps,
    events.map((event) => ask(id, event)),
  )
  assert.deepEqual(kindsOf(settled), ['moved', 'stale', 'moved', 'moved'])
  const [seen] = await look([id])
  assert.deepEqual(seen, { status: 'starting', runs: 2, open: 1, events: 4 })
})

test('a batch has the same answers and effects as its requests sent one after another', async () => {
  const places = [0, 1, 2] as const
  const anEvent = fc.constantFrom<TransitionEvent>('start_admitted', 'stop_requested', 'no_capacity', 'ended_badly')
  const aBatch = fc.array(fc.record({ place: fc.constantFrom(...places), event: anEvent }), { maxLength: 12 })
  await fc.assert(
    fc.asyncProperty(aBatch, async (asked) => {
      const together = await createSome(places.length)
      const apart = await createSome(places.length)
      const asksOf = (ids: readonly SandboxId[]): readonly TransitionRequest[] =>
        asked.flatMap(({ place, event }) => {
          const id = ids[place]
          return id === undefined ? [] : [ask(id, event)]
        })
      const answers = kindsOf(await moveEach(control.deps, asksOf(together)))
      const one: string[] = []
      for (const request of asksOf(apart)) one.push((await moveSandbox(control.deps, request)).kind)
      assert.deepEqual(answers, one)
      assert.deepEqual(await look(together), await look(apart))
    }),
    { numRuns: 20 },
  )
})

test('a rejecting fence or recheck moves nothing and rejects the whole batch', async () => {
  const ids = await createSome(3)
  const reject = (): Promise<void> => Promise.reject(new Error('another one leads'))
  const requests = ids.map((id) => ask(id, 'start_admitted'))
  await assert.rejects(moveAll({ ...control.deps, fence: reject }, requests), /another one leads/)
  await assert.rejects(moveAll(control.deps, requests, { recheck: reject }), /another one leads/)
  assert.ok((await look(ids)).every(({ status }) => status === 'created'))
})

test('sandboxes deleted in one batch, some twice, each record one event and end their runs', async () => {
  const ids = await createSome(4)
  await moveAll(
    control.deps,
    ids.slice(0, 2).map((id) => ask(id, 'start_admitted')),
  )
  const removals = [...ids, ...ids].map((id) => ({ caller: control.caller, sandbox: { id, name: id, slug: id } }))
  assert.deepEqual(
    await deleteBatch(control.deps, removals),
    removals.map(() => null),
  )
  const seen = await look(ids)
  assert.deepEqual(
    seen.map(({ open }) => open),
    [0, 0, 0, 0],
  )
  // each sandbox: created and deleted; the first two also starting and stopped
  assert.deepEqual(
    seen.map(({ events }) => events),
    [4, 4, 2, 2],
  )
})
