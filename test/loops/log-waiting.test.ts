import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { makeLifecycleLog } from '../../src/control/sandboxes/transitions/lifecycle-log.ts'
import { registerWorker } from '../../src/control/workers/worker-join.ts'
import { recordReport } from '../../src/control/workers/record-report.ts'
import type { Log } from '../../src/lib/log.ts'
import { makeLogWaitingLoop } from '../../src/loops/log-waiting.ts'
import { makePlacePendingLoop } from '../../src/loops/place-pending.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { reportOf } from '../support/report.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeTestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

const never = new AbortController().signal
let control: TestControl
before(async () => {
  control = await makeTestControl({ clock: makeTestClock() })
})
after(() => control.close())

type Line = { readonly fields: Readonly<Record<string, unknown>>; readonly message: string }

function collect(): { readonly lines: Line[]; readonly log: Log } {
  const lines: Line[] = []
  const write = (fields: object, message: string): void => {
    lines.push({ fields: { ...fields }, message })
  }
  const ignore = (): void => undefined
  const log: Log = { info: write, debug: ignore, warn: write, error: write, child: () => log }
  return { lines, log }
}

async function create(name: string): Promise<void> {
  const spec = { ...PLAIN_SPEC, resources: { ...PLAIN_SPEC.resources, vcpus: 8 } }
  const registry = { mode: 'auto' } as const
  const input = { spec, name, slug: null, registry, start: true, waitMs: null, signal: never }
  await createSandbox(control.deps, control.caller, input)
}

test('which sandboxes wait, and what they lack, is logged when they begin to wait and then for all together', async () => {
  const { deps } = control
  const worker_id = await registerWorker(deps, { name: 'small', credential: 'credential-of-small' })
  const capacity = { vcpus: 2, memory_mib: 1_000_000, disk_mib: 1_000_000 }
  await recordReport(deps, reportOf(worker_id, { seq: 1, capacity }))
  const { lines, log } = collect()
  const summary = makeLogWaitingLoop({ ...deps, log })
  await summary.run(never)
  assert.equal(lines.length, 0)
  const told = makeLifecycleLog({
    log,
    slugOfOrg: () => Promise.reject(new Error('the database is away')),
    explainWaiting: () => Promise.resolve('vcpus: 8 requested, 2 free'),
    monotonicMs: () => 0,
  })
  await create('first')
  await create('second')
  await makePlacePendingLoop({ ...deps, ...told }).run(never)
  await waitUntil(() => lines.length === 2)
  for (const [index, name] of ['first', 'second'].entries()) {
    assert.equal(lines[index]?.message, 'sandbox waits for capacity')
    assert.equal(lines[index].fields['name'], name)
    assert.equal(lines[index].fields['reason'], 'vcpus: 8 requested, 2 free')
    assert.equal(lines[index].fields['org_id'], control.caller.org_id)
  }
  await summary.run(never)
  const { message, fields } = lines[2] ?? {}
  assert.equal(message, 'sandboxes wait for capacity')
  assert.equal(fields?.['waiting'], 2)
  assert.equal(fields['name'], 'first')
  assert.equal(fields['reason'], 'vcpus: 8 requested, 2 free')
  assert.equal(lines.length, 3)
})
