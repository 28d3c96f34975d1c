import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { RENEW_DEADLINE_MS, WORKER_LEASE_MS } from '../../../src/domain/workers/lease.ts'
import { makeRenewDeadline, openRenewDeadline } from '../../../src/worker/agent/renew-deadline.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const folder = mkdtempSync(join(tmpdir(), 'sandyard-deadline-'))
after(() => {
  rmSync(folder, { recursive: true })
})

test('the renew deadline comes when a third of the lease is left, in which the worker destroys its runs', () => {
  assert.ok(WORKER_LEASE_MS - RENEW_DEADLINE_MS >= WORKER_LEASE_MS / 3)
})

test('the deadline is a fixed time after the last answered message was sent, whatever the order of answers', async () => {
  const clock = makeTestClock()
  const deadline = makeRenewDeadline(clock)
  const sentAtMs = deadline.nowMs() + 5_000
  clock.advance(10_000)
  await deadline.extend(sentAtMs)
  await deadline.extend(sentAtMs - 4_000)
  clock.advance(RENEW_DEADLINE_MS - 5_001)
  assert.equal(deadline.hasPassed(), false)
  clock.advance(1)
  assert.equal(deadline.hasPassed(), true)
})

test('a later incarnation inherits the deadline, and one that was written before this boot has passed', async () => {
  const file = join(folder, 'lease.json')
  const first = await openRenewDeadline(file)
  assert.equal(first.hasPassed(), true)
  await first.extend(first.nowMs())
  assert.equal(first.hasPassed(), false)
  assert.equal((await openRenewDeadline(file)).hasPassed(), false)
  await first.extend(first.nowMs() - RENEW_DEADLINE_MS)
  assert.equal((await openRenewDeadline(file)).hasPassed(), false, 'an overtaken answer takes nothing away')
  writeFileSync(file, readFileSync(file, 'utf8').replace(/"boot":"[^"]+"/, '"boot":"another"'))
  assert.equal((await openRenewDeadline(file)).hasPassed(), true)
  writeFileSync(file, '{"boot":')
  assert.equal((await openRenewDeadline(file)).hasPassed(), true)
})
