import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { SELF_FENCE_MS, WORKER_LEASE_MS } from '../../../src/domain/workers/lease.ts'
import { makeLease, openLease } from '../../../src/worker/agent/lease.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const folder = mkdtempSync(join(tmpdir(), 'sandyard-lease-'))
after(() => {
  rmSync(folder, { recursive: true })
})

test('a worker fences itself while a third of the lease is left for that', () => {
  assert.ok(WORKER_LEASE_MS - SELF_FENCE_MS >= WORKER_LEASE_MS / 3)
})

test('a lease ends a fixed time after the last answered message was sent, whatever the order of answers', async () => {
  const clock = makeTestClock()
  const lease = makeLease(clock)
  const sentAtMs = lease.nowMs() + 5_000
  clock.advance(10_000)
  await lease.renew(sentAtMs)
  await lease.renew(sentAtMs - 4_000)
  clock.advance(SELF_FENCE_MS - 5_001)
  assert.equal(lease.isOver(), false)
  clock.advance(1)
  assert.equal(lease.isOver(), true)
})

test('a later incarnation has what is left of the lease, and none if nothing was written since this boot', async () => {
  const file = join(folder, 'lease.json')
  const first = await openLease(file)
  assert.equal(first.isOver(), true)
  await first.renew(first.nowMs())
  assert.equal(first.isOver(), false)
  assert.equal((await openLease(file)).isOver(), false)
  await first.renew(first.nowMs() - SELF_FENCE_MS)
  assert.equal((await openLease(file)).isOver(), false, 'an overtaken answer takes nothing away')
  writeFileSync(file, readFileSync(file, 'utf8').replace(/"boot":"[^"]+"/, '"boot":"another"'))
  assert.equal((await openLease(file)).isOver(), true)
  writeFileSync(file, '{"boot":')
  assert.equal((await openLease(file)).isOver(), true)
})
