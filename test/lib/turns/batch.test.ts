import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import fc from 'fast-check'
import { MIN_BALANCED_ITEMS, makeBatch } from '../../../src/lib/turns/batch.ts'

test('each item gets its own result, however items are batched', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.integer(), { maxLength: 40 }),
      fc.integer({ min: 1, max: 5 }),
      fc.integer({ min: 1, max: 3 }),
      async (items, maxItems, maxInFlight) => {
        let inFlight = 0
        const double = makeBatch<number, number>({
          run: async (batch) => {
            assert.ok(batch.length <= maxItems)
            assert.ok(++inFlight <= maxInFlight)
            await Promise.resolve()
            inFlight -= 1
            return batch.map((item) => item * 2)
          },
          groupOf: () => '',
          maxItems,
          maxInFlight,
        })
        assert.deepEqual(await Promise.all(items.map(double)), items.map((item) => item * 2)) // prettier-ignore
      },
    ),
  )
})

test('calls of one turn form one batch, in the order of the calls', async () => {
  const batches: (readonly string[])[] = []
  const echo = makeBatch<string, string>({
    run: (batch) => {
      batches.push(batch)
      return Promise.resolve(batch)
    },
    groupOf: () => '',
    maxItems: 10,
    maxInFlight: 1,
  })
  await Promise.all(['a', 'b', 'c'].map(echo))
  assert.deepEqual(batches, [['a', 'b', 'c']])
})

test('among others, a group has one batch at a time, whose calls go on in several turns in their order', async () => {
  for (const isFailing of [false, true]) {
    let isShared = true
    let inFlight = 0
    let mostInFlight = 0
    const run = makeBatch<number, number>({
      run: async (batch) => {
        mostInFlight = Math.max(mostInFlight, ++inFlight)
        for (let turns = 0; turns < 3; turns += 1) await nextTurn() // long enough for a second batch to start
        inFlight -= 1
        if (isFailing) throw new Error('bad')
        return batch
      },
      groupOf: () => '',
      maxItems: 40,
      maxInFlight: 2,
      isAmongOthers: () => isShared,
    })
    const countsOfTurns = async (items: number): Promise<readonly number[]> => {
      const settled: number[] = []
      for (let item = 0; item < items; item += 1) {
        const add = (): void => void settled.push(item)
        run(item).then(add, add)
      }
      const totals = [0]
      for (; settled.length < items; totals.push(settled.length)) await nextTurn()
      assert.deepEqual(settled.slice(0, 40), [...settled.keys()].slice(0, 40)) // prettier-ignore
      return totals.slice(1).map((total, at) => total - (totals[at] ?? 0)).filter((count) => count > 0) // prettier-ignore
    }
    assert.deepEqual(await countsOfTurns(80), [16, 16, 8, 16, 16, 8])
    assert.equal(mostInFlight, 1)
    isShared = false
    assert.equal(Math.max(...(await countsOfTurns(80))), 40)
    assert.equal(mostInFlight, 2)
  }
})

test('a failed group rejects all its items and none of other groups, and the next batch runs', async () => {
  const run = makeBatch<string, string>({
    run: (batch) => (batch.includes('bad a') ? Promise.reject(new Error('bad')) : Promise.resolve(batch)),
    groupOf: (item) => item.slice(-1),
    maxItems: 10,
    maxInFlight: 1,
  })
  const answers = await Promise.allSettled(['bad a', 'good a', 'good b'].map(run))
  assert.deepEqual(answers.map(({ status }) => status), ['rejected', 'rejected', 'fulfilled']) // prettier-ignore
  assert.equal(await run('good a'), 'good a')
})

test('a batch that throws synchronously or returns a wrong number of results rejects only its own items', async () => {
  let calls = 0
  const run = makeBatch<number, number>({
    run: (batch) => {
      calls += 1
      if (calls === 1) throw new Error('at once')
      return Promise.resolve(calls === 2 ? [] : batch)
    },
    groupOf: () => '',
    maxItems: 1,
    maxInFlight: 1,
  })
  await assert.rejects(run(1), /at once/)
  await assert.rejects(run(2), /a batch of 1 returned 0 results/)
  assert.equal(await run(3), 3)
})

test('balanced batches take equal shares, and a second one of a group starts only once as many items wait', async () => {
  const sizes: number[] = []
  const ends: (() => void)[] = []
  const ask = makeBatch<string, string>({
    run: async (batch) => {
      sizes.push(batch.length)
      await new Promise<void>((resolve) => ends.push(resolve))
      return batch
    },
    groupOf: (item) => item,
    maxItems: 100,
    maxInFlight: 2,
    isBalanced: true,
  })
  const turn = (): Promise<void> => new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
  const askFor = (count: number): Promise<string>[] => Array.from({ length: count }, () => ask('a'))
  const half = MIN_BALANCED_ITEMS + 2
  const asked = askFor(2 * half)
  await turn()
  assert.deepEqual(sizes, [half, half]) // both halves are in progress
  ends.shift()?.()
  await Promise.all(asked.slice(0, half))
  const more = askFor(half - 1)
  await turn()
  assert.deepEqual(sizes, [half, half]) // with one item fewer than a half waiting, no batch starts
  more.push(ask('a'))
  await turn()
  assert.deepEqual(sizes, [half, half, half])
  ends.shift()?.()
  await Promise.all(asked)
  const other = ask('b')
  await turn()
  assert.deepEqual(sizes, [half, half, half, 1]) // batches of another group delay nothing
  for (const end of ends.splice(0)) end()
  await Promise.all([...more, other])
  const few = askFor(MIN_BALANCED_ITEMS)
  await turn()
  assert.deepEqual(sizes.slice(4), [MIN_BALANCED_ITEMS]) // few items stay together
  for (const end of ends) end()
  await Promise.all(few)
})

test('items of a group wait for no batch of another group', async () => {
  const ends: (() => void)[] = []
  const ask = makeBatch<string, string>({
    run: async (batch) => {
      if (batch.includes('slow')) await new Promise<void>((resolve) => ends.push(resolve))
      return batch
    },
    groupOf: (item) => item,
    maxItems: 1,
    maxInFlight: 1,
  })
  const slow = [ask('slow'), ask('slow')]
  assert.equal(await ask('quick'), 'quick')
  for (const one of slow) {
    while (ends.length === 0) await new Promise((resolve) => setImmediate(resolve))
    ends.shift()?.()
    assert.equal(await one, 'slow')
  }
})
