import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { makeSampler } from '../../../src/lib/tracing/sampler.ts'
import { makeSpanExporter, RETRY_MS, SPANS_MAX, type ExportResult } from '../../../src/lib/tracing/span-exporter.ts'
import { parseTraceParent } from '../../../src/lib/tracing/trace-context.ts'
import { makeTracer, type Span } from '../../../src/lib/tracing/tracer.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'
const CONTENT = { name: 'work', kind: 'internal', fromMs: 1, untilMs: 2, attributes: {}, error: null } as const
const span: Span = { ...CONTENT, traceId: TRACE, spanId: SPAN, parentSpanId: null }

test('a traceparent is parsed as W3C Trace Context says', () => {
  assert.deepEqual(parseTraceParent(`00-${TRACE}-${SPAN}-01`), { traceId: TRACE, spanId: SPAN, isSampled: true })
  assert.equal(parseTraceParent(`00-${TRACE}-${SPAN}-02`)?.isSampled, false)
  assert.equal(parseTraceParent(`cc-${TRACE}-${SPAN}-01-more`)?.traceId, TRACE)
  for (const malformed of [
    '',
    `00-${TRACE}-${SPAN}`,
    `00-${TRACE}-${SPAN}-01-more`,
    `ff-${TRACE}-${SPAN}-01`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
  ])
    assert.equal(parseTraceParent(malformed), null, malformed)
})

test('samplers decide as their names say', () => {
  const [sampled, unsampled] = [true, false].map((isSampled) => ({ traceId: TRACE, spanId: SPAN, isSampled }))
  assert.ok(sampled !== undefined && unsampled !== undefined)
  assert.equal(makeSampler('always_on', 1)(TRACE, unsampled), true)
  assert.equal(makeSampler('parentbased_always_on', 1)(TRACE, unsampled), false)
  assert.equal(makeSampler('parentbased_always_off', 1)(TRACE, sampled), true)
  assert.equal(makeSampler('parentbased_always_off', 1)(TRACE, null), false)
  const ids = Array.from({ length: 2000 }, () => systemRandom.bytes(16).toString('hex'))
  const share = ids.filter((id) => makeSampler('traceidratio', 0.25)(id, null)).length / ids.length
  assert.ok(share > 0.15 && share < 0.35, String(share))
  assert.ok(ids.every((id) => makeSampler('parentbased_traceidratio', 1)(id, null)))
})

test('spans of several processes have the stored span as their parent', () => {
  const spans: Span[] = []
  const make = () => makeTracer({ random: systemRandom, sampler: () => true, onSpan: (one) => spans.push(one) })
  const request = make().beginTrace(null)
  assert.ok(request !== null)
  const parent = make().record(request.traceParent, CONTENT)
  make().record(parent, CONTENT)
  request.end(CONTENT)
  const [outer, inner, root] = spans
  assert.equal(outer?.parentSpanId, root?.spanId)
  assert.equal(inner?.parentSpanId, outer?.spanId)
  assert.equal(new Set(spans.map(({ traceId }) => traceId)).size, 1)
})

type Sending = { readonly spans: readonly Span[]; readonly end: PromiseWithResolvers<ExportResult> }

function makeWorld() {
  const clock = makeTestClock(new Date(0))
  const sent: Sending[] = []
  const exporter = makeSpanExporter({
    clock,
    log: makeLog('silent'),
    send: (spans, signal) => {
      const end = Promise.withResolvers<ExportResult>()
      signal.addEventListener('abort', () => {
        end.reject(new Error('aborted'))
      })
      sent.push({ spans, end })
      return end.promise
    },
  })
  return { clock, sent, exporter }
}

test('a collector that fails gets the same spans again, and never more than the bound', async () => {
  const { clock, sent, exporter } = makeWorld()
  for (let count = 0; count < SPANS_MAX + 100; count++) exporter.add(span)
  await waitUntil(() => clock.sleepers === 1)
  clock.advance(1_000)
  await waitUntil(() => sent.length === 1)
  sent[0]?.end.reject(new Error('away'))
  await waitUntil(() => clock.sleepers === 1)
  clock.advance(RETRY_MS)
  for (let next = 1, taken = 0; taken < SPANS_MAX; next++) {
    const sending = await waitUntil(() => sent[next])
    taken += sending.spans.length
    sending.end.resolve('taken')
  }
  await exporter.close(1_000)
  assert.equal(sent.length, 1 + SPANS_MAX / 512)
})

test('the end waits for a collector that hangs no longer than its limit', async () => {
  const { sent, exporter } = makeWorld()
  exporter.add(span)
  const closing = exporter.close(20)
  await waitUntil(() => sent.length === 1)
  await closing
})
