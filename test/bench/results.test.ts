import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ResultRow } from '../../bench/support/report.ts'
import { timelineOf, worstGap } from '../../bench/support/start-timeline.ts'
import { formatSpread, mergeResults, renderStored, type StoredRow } from '../../bench/support/stored-results.ts'
import type { ReceivedSpan } from '../support/otlp-receiver.ts'

const HERE = { at: '2026-11-24', machine: 'two cores', load: 0.5, cores: 2 }

function row(benchmark: string, what: string, ratio: number): ResultRow {
  return { benchmark, what, measured: '1 ms', limit: '2 ms', ratio, goal: '<= 1.0', isMet: ratio <= 1 }
}

test('a recorded run replaces the rows of its benchmarks and keeps those of the others with their date', () => {
  const before = mergeResults([], [row('get', 'by id', 0.5), row('get', 'gone', 1), row('list', 'page', 2)], HERE)
  const after = mergeResults(before, [row('get', 'by id', 1.5)], { ...HERE, at: '2026-11-25' })
  assert.deepEqual(
    after.map(({ benchmark, what, at, isMet }) => [benchmark, what, at, isMet]),
    [
      ['get', 'by id', '2026-11-25', false],
      ['list', 'page', '2026-11-24', false],
    ],
  )
  assert.match(
    renderStored(after),
    /\| get +\| by id .*\| 1\.50 +\| fail +\| 0\.50 to 1\.50 \(2 runs\) +\| 2026-11-25, 0\.5 +\|/,
  )
})

test('the spread is that of the latest five runs on the same machine', () => {
  let stored: readonly StoredRow[] = []
  for (const ratio of [9, 1, 2, 3, 4, 5]) stored = mergeResults(stored, [row('get', 'by id', ratio)], HERE)
  assert.equal(formatSpread(stored[0]?.figures ?? []), '1.00 to 5.00 (5 runs)')
  stored = mergeResults(stored, [row('get', 'by id', 7)], { ...HERE, machine: 'another' })
  assert.equal(formatSpread(stored[0]?.figures ?? []), '')
})

test('a run beside other work never replaces the result of a quiet machine', () => {
  const quiet = mergeResults([], [row('get', 'by id', 0.5)], HERE)
  const busy = { ...HERE, load: 9 }
  assert.deepEqual(mergeResults(quiet, [row('get', 'by id', 2)], busy), quiet)
  assert.equal(mergeResults(quiet, [row('first', 'alone', 2)], busy).length, 2)
  const replaced = mergeResults(mergeResults([], [row('get', 'by id', 2)], busy), [row('get', 'by id', 0.5)], HERE)
  assert.equal(replaced[0]?.load, 0.5)
})

test('the phases of a create cover its time, and the worst gap is the longest time that none covers', () => {
  const span = (name: string, fromMs: number, untilMs: number): ReceivedSpan => ({
    name,
    fromMs,
    untilMs,
    traceId: 't',
    spanId: name,
    parentSpanId: null,
    attributes: {},
    error: null,
    service: 'sandyard',
  })
  const spans = [
    span('admission', 1_010, 1_015),
    span('placement', 1_010, 1_020),
    span('delivery', 1_018, 1_030),
    span('start image', 1_030, 1_035),
    span('start disk', 1_031, 1_050),
    span('start runtime', 1_057, 1_080),
    span('report', 1_080, 1_085),
  ]
  const times = { create: 1_001, created: 1_090, channel: 1_092, accepted: 1_094, ready: 1_100, command: 1_101, started: 1_105, exited: 1_110 } // prettier-ignore
  const timeline = timelineOf(spans, { beganMs: 1_000, endedMs: 1_111, timeOf: (kind) => times[kind] })
  assert.equal(timeline.totalMs, 111)
  assert.deepEqual(worstGap(timeline), { after: 'start disk', ms: 7 })
  const handOver = timeline.phases.find(({ name }) => name === 'hand-over')
  assert.deepEqual(handOver, { name: 'hand-over', fromMs: 20, untilMs: 30 })
})
