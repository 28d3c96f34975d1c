import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { spreadSteps } from '../../../src/lib/turns/spread-steps.ts'

test('one step begins in each turn of the event loop, and one that is alone at once', async () => {
  const nextStep = spreadSteps()
  let begun = 0
  const step = async (): Promise<void> => {
    await nextStep()
    begun += 1
  }
  const steps = [step(), step(), step()]
  await Promise.resolve()
  assert.equal(begun, 1)
  const counts: number[] = []
  for (let turn = 0; begun < 3; turn += 1) {
    await setImmediate()
    counts.push(begun)
  }
  assert.ok(
    counts.every((count, at) => count - (counts[at - 1] ?? 1) <= 1),
    String(counts),
  )
  await Promise.all(steps)
  await setImmediate()
  void step()
  await Promise.resolve()
  assert.equal(begun, 4)
})
