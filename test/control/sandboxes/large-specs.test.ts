import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeAdmitInBatch } from '../../../src/control/sandboxes/admit-in-batch.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { renderSpec } from '../../../src/control/sandboxes/render-spec.ts'
import type { SandboxSpec } from '../../../src/domain/spec/spec.ts'
import { LARGE_TEXT } from '../../../src/lib/next-turn.ts'
import type { Database } from '../../../src/store/postgres/database.ts'
import { makeTestControl } from '../../support/control.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'

function largeSpec(name: string): SandboxSpec {
  return { ...PLAIN_SPEC, env: [{ key: name, value: name.repeat(LARGE_TEXT) }] }
}

/** The turns of the event loop during `work`. */
async function countTurns(work: () => Promise<unknown>): Promise<number> {
  let turns = 0
  let immediate: NodeJS.Immediate
  const count = (): void => {
    turns += 1
    immediate = setImmediate(count)
  }
  immediate = setImmediate(count)
  await work()
  clearImmediate(immediate)
  return turns
}

test('the texts of a large specification are rendered in different turns of the event loop, and those of a small one at once', async () => {
  assert.equal(await countTurns(() => renderSpec(largeSpec('A'))), 2)
  assert.equal(await countTurns(() => renderSpec(PLAIN_SPEC)), 0)
})

test('of large specifications that arrive together, each is sent to the database by itself', async (t) => {
  const control = await makeTestControl()
  t.after(() => control.close())
  const { db } = control.deps
  const sizes: number[] = []
  const counted: Database = {
    ...db,
    commitStatement(scope, statement) {
      sizes.push((statement.values ?? []).reduce((sum: number, value) => sum + (Buffer.isBuffer(value) ? value.length : 0), 0)) // prettier-ignore
      return db.commitStatement(scope, statement)
    },
  }
  const deps = { ...control.deps, admitInBatch: makeAdmitInBatch({ ...control.deps, db: counted }) }
  const create = (spec: SandboxSpec) =>
    createSandbox(deps, control.caller, {
      spec,
      name: null,
      slug: null,
      registry: { mode: 'auto' },
      start: false,
      waitMs: null,
      signal: null,
    })
  const made = await Promise.all(['A', 'B', 'C', 'D'].map((name) => create(largeSpec(name))))
  assert.deepEqual(made.map(({ status }) => status), Array<string>(4).fill('created')) // prettier-ignore
  // The specification itself, and its projection for replies.
  assert.ok(Math.max(...sizes) < 3 * LARGE_TEXT, sizes.join(', '))
})
