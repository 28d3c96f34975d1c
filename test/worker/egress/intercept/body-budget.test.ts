import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeBodyBudgets } from '../../../../src/worker/egress/intercept/body-budget.ts'
import { openBody } from '../../../../src/worker/egress/intercept/request-body.ts'
import { parseHead } from '../../../../src/worker/egress/intercept/request-head.ts'
import { prepareSecrets } from '../../../../src/worker/egress/placeholders/host-secrets.ts'
import { testSecret } from '../../../support/intercept.ts'

const MIB = 1024 * 1024
const OPTIONS = { capacity: 128 * MIB, idleLimitMs: 60_000 }

test('a sandbox keeps at most as much as stays free, and what it releases is free again', () => {
  const budgetOf = makeBodyBudgets(OPTIONS)
  const take = (sandbox: string): number => {
    let taken = 0
    while (budgetOf(sandbox).acquire(MIB)) taken += 1
    return taken
  }
  assert.deepEqual([take('a'), take('b'), take('a'), take('c')], [64, 32, 0, 16])
  budgetOf('a').release(64 * MIB)
  assert.equal(take('d'), 40)
})

test('a body takes memory as it arrives, whatever length its head claims', () => {
  let taken = 0
  const budget = {
    acquire: (bytes: number) => {
      taken += bytes
      return true
    },
    release: (bytes: number) => void (taken -= bytes),
    idleLimitMs: 60_000,
  }
  const head = parseHead(Buffer.from('POST / HTTP/1.1\r\nHost: api.test\r\nContent-Length: 16777216'))
  const body = openBody(
    head,
    { ...prepareSecrets([testSecret()]), allowed: [testSecret()], forbidden: [], tolerated: [] },
    budget,
  )
  assert.equal(taken, 0)
  body.push(Buffer.alloc(1))
  assert.equal(taken, 64 * 1024)
  for (let sent = 1; sent < 5 * MIB; sent += 1024) body.push(Buffer.alloc(1024))
  assert.equal(taken, 8 * MIB)
  body.close?.()
  assert.equal(taken, 0)
})
