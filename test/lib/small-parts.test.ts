import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { interruptibleSleep, systemClock, waitAtMost } from '../../src/lib/clock.ts'
import { systemRandom, randomBelow } from '../../src/lib/random.ts'
import { makeSeal, UnsealError } from '../../src/lib/seal.ts'
import { once } from '../../src/lib/turns/once.ts'
import { minUuidAt, isUuid, makeUuids } from '../../src/lib/uuid.ts'
import { makeTestClock } from '../support/test-clock.ts'

test('a sealed value opens only with its own key and context', () => {
  const seal = makeSeal(Buffer.alloc(32, 1), systemRandom)
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), fc.string(), fc.nat(), (text, context, place) => {
      const written = Buffer.from(text).toString()
      const sealed = seal.seal(written, context)
      assert.equal(seal.open(sealed, context), written)
      assert.notDeepEqual(seal.seal(written, context), sealed)
      assert.throws(() => seal.open(sealed, `${context}x`))
      assert.throws(() => makeSeal(Buffer.alloc(32, 2), systemRandom).open(sealed, context))
      const changed = Buffer.from(sealed)
      changed.writeUInt8(changed.readUInt8(place % changed.length) ^ 1, place % changed.length)
      assert.throws(() => seal.open(changed, context))
      for (const cut of [0, 1, 12, 28]) assert.throws(() => seal.open(sealed.subarray(0, cut), context))
    }),
    { numRuns: 50 },
  )
  assert.throws(() => makeSeal(Buffer.alloc(31), systemRandom), /31 bytes/)
})

test('a large sealed text opens in pieces of any size, and not if a byte was changed', async () => {
  const seal = makeSeal(Buffer.alloc(32, 1), systemRandom)
  const text = Buffer.from('ä"𝄞'.repeat(500))
  const sealed = Buffer.concat(await seal.sealInTurns([text.subarray(0, 9), text.subarray(9)], 'owner'))
  assert.equal(seal.open(sealed, 'owner'), text.toString())
  const split = (bytes: Buffer, size: number): readonly Buffer[] =>
    Array.from({ length: Math.ceil(bytes.length / size) }, (_, n) => bytes.subarray(n * size, (n + 1) * size))
  for (const size of [29, 30, 1_000, sealed.length]) {
    assert.deepEqual(Buffer.concat(await seal.openInTurns(split(sealed, size), 'owner')), text)
    await assert.rejects(seal.openInTurns(split(sealed, size), 'other'), UnsealError)
    await assert.rejects(seal.openInTurns(split(sealed.subarray(0, -1), size), 'owner'), UnsealError)
  }
  await assert.rejects(seal.openInTurns([], 'owner'), UnsealError)
})

test('identifiers of one process never repeat or go back, whatever its clock does', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 10 }), { minLength: 2, maxLength: 50 }), (times) => {
      let index = 0
      const now = (): Date => new Date(1_700_000_000_000 + (times[index++ % times.length] ?? 0))
      const uuids = makeUuids({ ...systemClock, now }, systemRandom)
      const made = times.map(() => uuids.next())
      assert.deepEqual(made, [...new Set(made)].sort())
      for (const id of made) assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    }),
  )
  const stopped = makeUuids({ ...systemClock, now: () => new Date(1_700_000_000_000) }, systemRandom)
  const many = Array.from({ length: 10_000 }, () => stopped.next())
  assert.deepEqual(many, [...new Set(many)].sort())
})

test('the smallest identifier of a time sorts before all identifiers of that time and after all earlier ones', () => {
  const at = new Date('2026-11-21T12:00:00Z')
  const idAt = (ms: number): string =>
    makeUuids({ ...systemClock, now: () => new Date(at.getTime() + ms) }, systemRandom).next()
  assert.ok(minUuidAt(at) < idAt(0))
  assert.ok(minUuidAt(at) > idAt(-1))
  assert.ok(isUuid(minUuidAt(at)) && isUuid(minUuidAt(new Date(-1))))
  assert.ok(!isUuid(`${minUuidAt(at)}\n`) && !isUuid(''))
})

test('a random number is below its limit, and every number occurs', () => {
  const seen = new Set(Array.from({ length: 500 }, () => randomBelow(systemRandom, 7)))
  assert.deepEqual(
    [...seen].toSorted((a, b) => a - b),
    [0, 1, 2, 3, 4, 5, 6],
  )
})

test('a sleep ends when its signal aborts, before or during it, and removes its listener', async () => {
  const aborted = AbortSignal.abort(new Error('enough'))
  await assert.rejects(systemClock.sleep(60_000, aborted), /enough/)
  await interruptibleSleep(systemClock, 60_000, aborted)
  const ending = new AbortController()
  const sleep = systemClock.sleep(60_000, ending.signal)
  ending.abort(new Error('now'))
  await assert.rejects(sleep, /now/)
  const fromMs = systemClock.monotonicMs()
  await interruptibleSleep(systemClock, 20, new AbortController().signal)
  assert.ok(systemClock.monotonicMs() - fromMs >= 19)
})

test('a limited wait ends with its work, its time or a signal, and then its timer is gone', async () => {
  const clock = makeTestClock()
  const never = new Promise<void>(() => undefined)
  const left = new AbortController()
  await waitAtMost(clock, 1_000, Promise.resolve())
  await assert.rejects(waitAtMost(clock, 1_000, Promise.reject(new Error('no'))), /no/)
  const aborted = waitAtMost(clock, 1_000, never, left.signal)
  left.abort()
  await aborted
  assert.equal(clock.sleepers, 0)
  const late = waitAtMost(clock, 1_000, never)
  clock.advance(1_000)
  await late
})

test('a function wrapped by `once` runs at the first call, and later calls return the first result', () => {
  let times = 0
  const count = once(() => (times += 1))
  assert.equal(times, 0)
  assert.deepEqual([count(), count(), times], [1, 1, 1])
})
