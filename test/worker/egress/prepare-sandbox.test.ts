import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeAuthority } from '../../../src/lib/make-authority.ts'
import { makeSandboxPreparer, type EgressSandbox } from '../../../src/worker/egress/prepare-sandbox.ts'
import { interceptAll } from '../../support/intercept.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const [ONE, OTHER] = ['10.0.0.1', '10.0.0.2'] as const
/** How many new names a sandbox may use at once. */
const BURST = 256

test('a sandbox gets certificates for so many new names, then a few a second; known names and other sandboxes always', async () => {
  const { clock, prepare } = await makeWorld()
  const [one, other] = [await prepare(ONE), await prepare(OTHER)]
  for (let n = 0; n < BURST; n++) await contextOf(one, `n${String(n)}.test`)
  await assert.rejects(contextOf(one, 'more.test'), /too many new server names/)
  await contextOf(one, 'n7.test')
  await contextOf(other, 'more.test')
  await contextOf(one, 'more.test') // the other one made it
  await assert.rejects(contextOf(await prepare(ONE), 'next.test'), /too many new server names/, 'with new settings too')
  clock.advance(1_000)
  for (let n = 0; n < 20; n++) await contextOf(one, `later${String(n)}.test`)
  await assert.rejects(contextOf(one, 'next.test'), /too many new server names/)
})

test('a certificate that is due for renewal is used on while it is valid, if the sandbox has used up its new names', async () => {
  const { clock, prepare } = await makeWorld()
  const one = await prepare(ONE)
  const context = await contextOf(one, 'known.test')
  clock.advance(23 * 3_600_000)
  for (let n = 0; n < BURST; n++) await contextOf(one, `n${String(n)}.test`)
  assert.equal(await contextOf(one, 'known.test'), context)
  clock.advance(1_000)
  assert.notEqual(await contextOf(one, 'known.test'), context)
})

test('sandboxes with one authority share certificates, and none drops those of another', async () => {
  const { clock, prepare } = await makeWorld()
  const [one, other] = [await prepare(ONE), await prepare(OTHER)]
  const context = await contextOf(one, 'kept.test')
  assert.equal(await contextOf(other, 'kept.test'), context)
  for (let n = 0; n < 1_100; n++) {
    await contextOf(other, `n${String(n)}.test`)
    clock.advance(50)
  }
  assert.equal(await contextOf(one, 'kept.test'), context)
})

async function makeWorld() {
  const clock = makeTestClock()
  const authority = await makeAuthority('Sandyard test', { nowMs: clock.now().getTime() })
  const prepare = makeSandboxPreparer(clock)
  const settings = {
    gateway: '127.0.0.1',
    egress: [],
    strict: false,
    secrets: [],
    interception: interceptAll(authority),
  }
  return { clock, prepare: (address: string) => prepare(address, settings) }
}

function contextOf({ tls }: EgressSandbox, host: string) {
  assert.ok(tls !== null)
  return tls.certificates.contextFor(host)
}
