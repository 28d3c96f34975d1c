import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import type { ObservedRun } from '../../../../src/contract/workers/worker-protocol.ts'
import { asId, type RunId, type SandboxId } from '../../../../src/domain/ids.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { makeRunWatch, type RunWatch } from '../../../../src/worker/drivers/shared/run-watch.ts'
import { makeTestClock, type TestClock } from '../../../support/test-clock.ts'
import { waitUntil } from '../../../support/wait.ts'

const RUNNING: ObservedRun = { run_id: asId<RunId>('r'), sandbox_id: asId<SandboxId>('s'), phase: 'running' }
const ENDED: ObservedRun = { ...RUNNING, phase: 'ended', outcome: { kind: 'stopped' } }
/** The poll interval with one run. */
const POLL_MS = 500

type Watched = { readonly watch: RunWatch; readonly clock: TestClock; readonly looks: () => number }

/** Opens a watch of one run that has been polled once and waits. */
async function openWatch(t: TestContext): Promise<Watched> {
  const endsFolder = mkdtempSync(join(tmpdir(), 'sandyard-run-watch-'))
  const clock = makeTestClock()
  let count = 0
  const watch = makeRunWatch({
    list: () => {
      count += 1
      return Promise.resolve([RUNNING])
    },
    releaseEnded: () => Promise.resolve(),
    endsFolder,
    clock,
    log: makeLog('silent'),
  })
  t.after(async () => {
    await watch.close()
    rmSync(endsFolder, { recursive: true })
  })
  await waitUntil(() => clock.sleepers === 1)
  assert.equal(count, 1)
  return { watch, clock, looks: () => count }
}

/** Lets time pass until the watch waits again. */
async function pass({ clock }: Watched, ms: number): Promise<void> {
  clock.advance(ms)
  await waitUntil(() => clock.sleepers === 1)
}

test('a poll waits while others list the runs and find nothing new', async (t) => {
  const watched = await openWatch(t)
  await pass(watched, POLL_MS - 1)
  watched.watch.noteListed([RUNNING])
  await pass(watched, 1)
  assert.equal(watched.looks(), 1)
  await pass(watched, POLL_MS - 2)
  assert.equal(watched.looks(), 1)
  await pass(watched, 1)
  assert.equal(watched.looks(), 2)
})

for (const [what, observed] of [
  ['a change', [{ ...RUNNING, memory_kills: 1 }]],
  ['a missing run', []],
  ['an ended run, which may still have resources', [ENDED]],
] as const)
  test(`a poll does not wait after others have listed ${what}`, async (t) => {
    const watched = await openWatch(t)
    await pass(watched, POLL_MS - 1)
    watched.watch.noteListed(observed)
    await pass(watched, 1)
    assert.equal(watched.looks(), 2)
  })
