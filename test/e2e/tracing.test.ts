import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { freePort } from '../support/free-port.ts'
import { startOtlpReceiver, type OtlpReceiver, type ReceivedSpan } from '../support/otlp-receiver.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'
import { waitUntil } from '../support/wait.ts'

// Traces of starts, as a collector gets them from a real server.

const CLIENT = { trace: '4bf92f3577b34da6a3ce929d0e0e4736', span: '00f067aa0ba902b7' }
const WAITING = { start: 'true', wait_for: 'running' }

/** The spans of the start of one sandbox, once the collector has them, by name. */
async function spansOf(collector: OtlpReceiver, sandbox: string): Promise<ReadonlyMap<string, ReceivedSpan>> {
  return waitUntil(() => {
    const own = collector.spans.find(({ name, attributes }) => name === 'admission' && attributes['sandyard.sandbox.id'] === sandbox) // prettier-ignore
    const trace = collector.spans.filter(({ traceId }) => traceId === own?.traceId)
    const isComplete = trace.some(({ name }) => name === 'start') && trace.some(({ name }) => name.startsWith('POST'))
    return isComplete && new Map(trace.map((span) => [span.name, span]))
  })
}

describe('traces', () => {
  let collector: OtlpReceiver
  let server: RealServer
  before(async () => {
    collector = await startOtlpReceiver()
    server = await startServer({
      SANDYARD_DRIVER: 'simulated',
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20of-the-collector',
      OTEL_RESOURCE_ATTRIBUTES: 'service.name=yard,deployment.environment.name=test',
    })
  })
  after(async () => {
    await server.close()
    await collector[Symbol.asyncDispose]()
  })

  test('a create is one trace from the request to the start’s phases, within the trace of the client', async () => {
    const { id } = await mustCall(server, 'create_sandbox', {
      query: WAITING,
      body: { name: 'traced', image: 'localhost/demo', env: [{ key: 'TOKEN', value: 'secret-of-the-tenant' }] },
      headers: { traceparent: `00-${CLIENT.trace}-${CLIENT.span}-01` },
    })
    const spans = await spansOf(collector, id)
    const request = spans.get('POST /v1/sandboxes')
    const parents = new Map([...spans.values()].map(({ name, parentSpanId }) => [name, parentSpanId]))
    const start = spans.get('start')
    assert.deepEqual(
      parents,
      new Map([
        ...[...parents.keys()].map((name) => [name, request?.spanId] as const), // in the order of their arrival
        ['POST /v1/sandboxes', CLIENT.span],
        ['start runtime', start?.spanId],
      ]),
    )
    assert.deepEqual([...parents.keys()].toSorted(), ['POST /v1/sandboxes', 'admission', 'delivery', 'placement', 'report', 'start', 'start runtime']) // prettier-ignore
    const order = ['admission', 'placement', 'delivery', 'start', 'start runtime', 'report'].map((name) =>
      spans.get(name),
    )
    for (const [index, span] of order.entries()) {
      assert.ok(span !== undefined && span.fromMs <= span.untilMs)
      assert.ok((order[index - 1]?.fromMs ?? 0) <= span.fromMs + 1, `${span.name} begins too early`) // times of rows are whole milliseconds
      assert.equal(span.traceId, CLIENT.trace)
    }
    assert.equal(start?.attributes['sandyard.sandbox.id'], id)
    assert.equal(start.attributes['sandyard.driver'], 'simulated')
    assert.equal(start.service, 'yard')
    assert.deepEqual({ ...collector.requests[0] }, { path: '/v1/traces', authorization: 'Bearer of-the-collector' })
    assert.ok(!JSON.stringify(collector.spans).includes('secret-of-the-tenant'))
    assert.ok(!server.output().includes('of-the-collector'))
  })

  test('a start is traced too; a malformed traceparent begins a new trace, and one that is not sampled none', async () => {
    const { id } = await mustCall(server, 'create_sandbox', {
      body: { name: 'later', image: 'localhost/demo' },
      headers: { traceparent: `00-${CLIENT.trace}-${CLIENT.span}-00` },
    })
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' }, headers: { traceparent: 'mine' } }) // prettier-ignore
    const spans = await spansOf(collector, id)
    const request = spans.get('POST /v1/sandboxes/{sandbox_id}/start')
    assert.equal(request?.parentSpanId, null)
    assert.notEqual(request.traceId, CLIENT.trace)
    assert.equal(request.attributes['http.response.status_code'], '200')
    assert.ok(!spans.has('POST /v1/sandboxes'))
  })

  test('a collector that is away delays no request and no stop, and is logged once', async () => {
    const port = await freePort()
    await server.stop()
    const from = server.output().length
    await server.start({ OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${String(port)}` })
    for (const name of ['one', 'two'])
      await mustCall(server, 'create_sandbox', { query: WAITING, body: { name, image: 'localhost/demo' } })
    const said = () =>
      server
        .output()
        .slice(from)
        .match(/traces could not be exported/g)?.length ?? 0
    await waitUntil(() => said() > 0)
    const stopMs = await server.stop()
    assert.ok(stopMs < 8_000 * TIMEOUT_FACTOR, `the stop took ${String(stopMs)} ms`)
    assert.equal(said(), 1)
  })
})

test(
  'a container’s start has its phases in the trace and in the event, and a failed one the phase that failed',
  { skip: whyNoServer() },
  async () => {
    await using collector = await startOtlpReceiver()
    const server = await startServer({
      SANDYARD_DRIVER: 'oci',
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${collector.url}/mine`,
    })
    try {
      const { id } = await mustCall(server, 'create_sandbox', {
        query: WAITING,
        body: { name: 'box', image: 'localhost/demo' },
      })
      const spans = await spansOf(collector, id)
      const phases = ['disk', 'files', 'image', 'limits', 'mounts', 'network', 'output', 'rootfs', 'runtime']
      const names = [...spans.keys()].filter((name) => name.startsWith('start ')).toSorted()
      assert.deepEqual(
        names,
        phases.map((phase) => `start ${phase}`),
      )
      assert.equal(collector.requests[0]?.path, '/mine')
      assert.equal(spans.get('start')?.attributes['sandyard.driver'], 'oci')
      const { data } = await mustCall(server, 'list_events', { query: { event_type: 'sandbox_running' } })
      assert.deepEqual(Object.keys(measuredIn(data[0]).start_ms ?? {}).toSorted(), phases)

      const failed = await mustCall(server, 'create_sandbox', {
        query: WAITING,
        body: { name: 'none', image: 'localhost/none' },
      })
      const failure = await spansOf(collector, failed.id)
      assert.match(failure.get('start image')?.error ?? '', /localhost\/none/)
      const events = await mustCall(server, 'list_events', { query: { event_type: 'sandbox_failed' } })
      assert.equal(measuredIn(events.data[0]).failed_phase, 'image')
    } finally {
      await server.close()
    }
  },
)

type Measured = { readonly start_ms?: object; readonly failed_phase?: string }

/** What the event says about the phases of the start. */
function measuredIn(event: { readonly payload: unknown } | undefined): Measured {
  assert.ok(event !== undefined)
  return event.payload as Measured // the catalogue of events lists these fields
}
