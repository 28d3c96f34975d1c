import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeNameQuestions, type NameQuestion } from '../../../src/worker/egress/name-questions.ts'

test('few questions of a sandbox are under way at a time, all are answered, and another sandbox waits for none of them', async () => {
  const sent: NameQuestion[] = []
  const questions = makeNameQuestions((question) => sent.push(question))
  const busy = Array.from({ length: 1_000 }, (_, n) => questions.ask('10.0.0.1', `1.1.1.${String(n)}`))
  const other = questions.ask('10.0.0.2', '2.2.2.2')
  await new Promise((resolve) => setImmediate(resolve))
  assert.equal(sent.length, 33)
  questions.answer(sent.at(-1)?.id ?? 0, ['other.test'])
  assert.deepEqual(await other, ['other.test'])
  for (const [n, question] of sent.entries()) {
    questions.answer(question.id, [question.address])
    if (n === 32) continue // answered before
    assert.ok(sent.filter(({ sandbox }) => sandbox === '10.0.0.1').length <= n + 34)
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.deepEqual(
    (await Promise.all(busy)).flat(),
    busy.map((_, n) => `1.1.1.${String(n)}`),
  )
})

test('a sandbox whose questions all wait gets no more of them', async () => {
  const questions = makeNameQuestions(() => undefined)
  const waiting = Array.from({ length: 32 + 4_096 }, () => questions.ask('10.0.0.1', '1.1.1.1'))
  await assert.rejects(questions.ask('10.0.0.1', '1.1.1.1'), /too many connections/)
  assert.equal(await Promise.race([...waiting, Promise.resolve('pending')]), 'pending')
})
