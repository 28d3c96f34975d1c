import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { makeFairSlots } from '../../src/lib/fair-slots.ts'

/** Lets what was resolved go on. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('no more than all places are lent, none has more than its share, and each who waits has a turn in the end', async () => {
  const steps = fc.array(fc.record({ key: fc.constantFrom('a', 'b', 'c'), giveBack: fc.boolean() }), { maxLength: 80 })
  await fc.assert(
    fc.asyncProperty(steps, async (asked) => {
      const places = makeFairSlots({ slots: 4, perKey: 2, waitingPerKey: 50 })
      const held: { readonly key: string; readonly giveBack: () => void }[] = []
      let asking = 0
      let served = 0
      const check = (): void => {
        assert.ok(places.taken <= 4)
        for (const key of ['a', 'b', 'c']) assert.ok(held.filter((one) => one.key === key).length <= 2)
      }
      for (const { key, giveBack } of asked) {
        asking += 1
        void places.take(key)?.then((end) => {
          served += 1
          held.push({ key, giveBack: end })
        })
        await settled()
        check()
        if (giveBack) held.shift()?.giveBack()
        await settled()
        check()
      }
      while (held.length > 0) {
        held.shift()?.giveBack()
        await settled()
        check()
      }
      assert.equal(served, asking)
      assert.deepEqual([places.taken, places.waiting], [0, 0])
    }),
    { numRuns: 50 },
  )
})

test('who asks once waits for one turn of who asks a thousand times', async () => {
  const places = makeFairSlots({ slots: 2, perKey: 2, waitingPerKey: 1_000 })
  const order: string[] = []
  const ask = async (key: string): Promise<void> => {
    const giveBack = await places.take(key)
    await settled()
    order.push(key)
    giveBack?.()
  }
  const greedy = Array.from({ length: 1_000 }, () => ask('greedy'))
  await ask('modest')
  assert.ok(order.indexOf('modest') <= 4, String(order.indexOf('modest')))
  await Promise.all(greedy)
})

test('a key of which too many wait is refused at once, and no other is', () => {
  const places = makeFairSlots({ slots: 1, perKey: 1, waitingPerKey: 3 })
  for (let asked = 0; asked < 4; asked++) assert.notEqual(places.take('greedy'), null)
  assert.equal(places.take('greedy'), null)
  assert.notEqual(places.take('modest'), null)
})
