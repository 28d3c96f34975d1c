import assert from 'node:assert/strict'
import { test } from 'node:test'
import { knownGeneration, noteGeneration, WHOLE_REPORT_EVERY_MS } from '../../../src/worker/agent/sync-loop.ts'

const fresh = () => ({ content: null, sinceSeq: 0, generation: null, wholeAtMs: 0 })
const NOW = WHOLE_REPORT_EVERY_MS

test('a report names the generation of the last answer while it says the same, and no other one', () => {
  const memory = fresh()
  assert.equal(knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW }), null)
  noteGeneration(memory, 1, 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 2, nowMs: NOW }), 7)
  assert.equal(knownGeneration(memory, { content: 'b', seq: 3, nowMs: NOW }), null)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 4, nowMs: NOW }), null)
})

test('an answer to a report that said something else is no word on the one that is sent now', () => {
  const memory = fresh()
  knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW })
  knownGeneration(memory, { content: 'b', seq: 2, nowMs: NOW })
  noteGeneration(memory, 1, 7) // it was held, and was released by the second
  assert.equal(knownGeneration(memory, { content: 'b', seq: 3, nowMs: NOW }), null)
  noteGeneration(memory, 2, 8)
  noteGeneration(memory, 3, null) // it brought something new
  assert.equal(knownGeneration(memory, { content: 'b', seq: 4, nowMs: NOW }), null)
})

test('a report is read whole now and then though it says the same', () => {
  const memory = fresh()
  knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW })
  noteGeneration(memory, 1, 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 2, nowMs: NOW + WHOLE_REPORT_EVERY_MS - 1 }), 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 3, nowMs: NOW + WHOLE_REPORT_EVERY_MS }), null)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 4, nowMs: NOW + WHOLE_REPORT_EVERY_MS }), 7)
})
