import assert from 'node:assert/strict'
import { test } from 'node:test'
import { knownGeneration, noteGeneration, WHOLE_REPORT_EVERY_MS } from '../../../src/worker/agent/sync-loop.ts'

const fresh = () => ({ content: null, sinceSeq: 0, generation: null, wholeAtMs: 0 })
const NOW = WHOLE_REPORT_EVERY_MS

test('an unchanged report contains the generation of the last answer, and a changed report contains none', () => {
  const memory = fresh()
  assert.equal(knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW }), null)
  noteGeneration(memory, 1, 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 2, nowMs: NOW }), 7)
  assert.equal(knownGeneration(memory, { content: 'b', seq: 3, nowMs: NOW }), null)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 4, nowMs: NOW }), null)
})

test('the next report does not use the generation from the answer to a report with other content', () => {
  const memory = fresh()
  knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW })
  knownGeneration(memory, { content: 'b', seq: 2, nowMs: NOW })
  noteGeneration(memory, 1, 7) // the answer to the first report, which was held until the second one arrived
  assert.equal(knownGeneration(memory, { content: 'b', seq: 3, nowMs: NOW }), null)
  noteGeneration(memory, 2, 8)
  noteGeneration(memory, 3, null) // an answer with something new has no generation
  assert.equal(knownGeneration(memory, { content: 'b', seq: 4, nowMs: NOW }), null)
})

test('even an unchanged report is sent without a generation from time to time', () => {
  const memory = fresh()
  knownGeneration(memory, { content: 'a', seq: 1, nowMs: NOW })
  noteGeneration(memory, 1, 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 2, nowMs: NOW + WHOLE_REPORT_EVERY_MS - 1 }), 7)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 3, nowMs: NOW + WHOLE_REPORT_EVERY_MS }), null)
  assert.equal(knownGeneration(memory, { content: 'a', seq: 4, nowMs: NOW + WHOLE_REPORT_EVERY_MS }), 7)
})
