import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import { test, type TestContext } from 'node:test'
import { encodeLogCursor } from '../../../src/contract/streams/operations.ts'
import type { LogBatch, LogRequest } from '../../../src/control/streams/read-logs.ts'
import { DEFAULT_SERVER_SETTINGS } from '../../../src/http/server/server.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { openEvents, readLog, type ServerEvent } from '../../support/events.ts'
import { asCaller, KEY, makeHttpWorld, SANDBOX_ID, type WorldOptions } from '../../support/http-world.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'

const PATH = `/v1/sandboxes/${SANDBOX_ID}/logs`
const NOW = '2026-11-21T10:14:00.123Z'

type Source = (ask: LogRequest) => AsyncIterable<LogBatch>

/**
 * Starts a server whose sandbox has this log. Resolves with its address, the queries of the log, and a function that
 * closes it.
 */
async function serve(
  t: TestContext,
  source: Source,
  settings: Partial<typeof DEFAULT_SERVER_SETTINGS> = {},
): Promise<{ readonly url: string; readonly asked: LogRequest[]; readonly close: () => Promise<void> }> {
  const asked: LogRequest[] = []
  const readLogs: NonNullable<WorldOptions['useCases']>['readLogs'] = (_caller, ask) => {
    asked.push(ask)
    return Promise.resolve(source(ask))
  }
  const app = makeHttpWorld({
    useCases: { readLogs },
    server: { settings: { ...DEFAULT_SERVER_SETTINGS, ...settings } },
  })
  const url = `${await app.listen({ host: '127.0.0.1', port: 0 })}${PATH}`
  let closed: Promise<void> | null = null
  const close = (): Promise<void> => (closed ??= app.close())
  t.after(close)
  return { url, asked, close }
}

const only = (...batches: readonly LogBatch[]): Source =>
  async function* () {
    yield* batches
  }

/** A log without entries, which can be followed until the reader disconnects. */
const silent: Source = async function* ({ signal }) {
  if (!signal.aborted) await once(signal, 'abort')
  yield* []
}

function entry(offset: number, text: string): LogBatch['entries'][number] {
  return { position: { generation: 1, offset }, source: 'stdout', ts: NOW, text }
}

test('lines are sent as the public client needs them: cursor, type, and data on one line, then the end', async (t) => {
  const batch: LogBatch = { entries: [entry(2, 'line0\n'), entry(9, 'a\r\nb\u2028"\0')], isLast: true }
  const { url } = await serve(t, only(batch))
  const { status, headers, events } = await openEvents(url, KEY)
  const got: ServerEvent[] = []
  for await (const event of events) got.push(event)
  assert.equal(status, 200)
  assert.equal(headers.get('content-type'), 'text/event-stream')
  assert.equal(headers.get('cache-control'), 'no-cache, no-transform')
  assert.equal(headers.get('x-accel-buffering'), 'no')
  assert.ok(headers.has('x-request-id'))
  assert.deepEqual(got, [
    { id: null, type: ':', data: 'keep-alive' },
    { id: 'AQEAAAAAAAAAAgAAAAAAAAA=', type: 'log', data: `{"source":"stdout","ts":"${NOW}","text":"line0\\n"}` },
    { id: encodeLogCursor({ generation: 1, offset: 9 }), type: 'log', data: JSON.stringify({ source: 'stdout', ts: NOW, text: 'a\r\nb\u2028"\0' }) },
    { id: null, type: 'end', data: '{}' },
  ]) // prettier-ignore
})

test('absent parameters have their defaults, and all others reach the use case', async (t) => {
  const { url, asked } = await serve(t, only({ entries: [], isLast: true }))
  const cursor = encodeLogCursor({ generation: 3, offset: 40 })
  await readLog(url, KEY)
  await readLog(`${url}?sources=stdout,stderr,output,system&since=2026-11-21T10:00:00%2B01:00&until=${NOW}&tail=7&follow_timeout=3600`, KEY) // prettier-ignore
  await readLog(`${url}?follow=false&sources=system&tail=0`, KEY)
  await readLog(`${url}?tail=5`, KEY, { headers: { 'last-event-id': cursor } })
  const plain = { after: null, since: null, until: null, tail: null, sources: ['stdout', 'stderr', 'output'] }
  const all = ['stdout', 'stderr', 'output', 'system']
  assert.deepEqual(
    asked.map(({ query, followMs }) => ({ query, followMs })),
    [
      { query: plain, followMs: 25_000 },
      {
        query: { ...plain, sources: all, since: '2026-11-21T09:00:00.000Z', until: NOW, tail: 7 },
        followMs: 3_600_000,
      },
      { query: { ...plain, sources: ['system'], tail: 0 }, followMs: null },
      { query: { ...plain, after: { generation: 3, offset: 40 } }, followMs: 25_000 },
    ],
  )
})

test('an invalid parameter is refused by name, with what would be accepted, before the log is read', async (t) => {
  const { url, asked } = await serve(t, only())
  const cases: readonly (readonly [string, string, RegExp])[] = [
    ['?sources=stdout,stdin', 'query.sources', /"stdin"; accepted: stdout, stderr, output, system/],
    ['?sources=', 'query.sources', /accepted: stdout/],
    ['?follow=1', 'query.follow', /true or false/],
    ['?follow_timeout=0', 'query.follow_timeout', /1/],
    ['?follow_timeout=3601', 'query.follow_timeout', /3600/],
    ['?follow=false&follow_timeout=5', 'query.follow_timeout', /follow=true/],
    ['?since=yesterday', 'query.since', /date-time|RFC 3339/],
    ['?until=2026-02-30T00:00:00Z', 'query.until', /date-time|RFC 3339/],
    [`?since=${NOW}&until=${NOW}`, 'query.until', /after since/],
    ['?tail=10001', 'query.tail', /10000/],
    ['?tail=-1', 'query.tail', /0/],
    ['?lines=5', 'query.lines', /./],
  ]
  for (const [query, field, words] of cases) {
    const { status, refusal } = await openEvents(url + query, KEY)
    const error = await refusal()
    assert.equal(status, 400, query)
    assertReplyMatchesContract('read_sandbox_logs', status, { error })
    assert.equal(Object(error.details).field, field)
    assert.match(error.message, words)
  }
  const { status, refusal } = await openEvents(url, KEY, { headers: { 'last-event-id': '17' } })
  assert.equal(status, 400)
  assert.match((await refusal()).message, /last-event-id is "17"; accepted: the id of an event/)
  assert.deepEqual(asked, [])
})

test('a silent stream sends comments from time to time', async (t) => {
  const { url } = await serve(t, silent, { keepAliveMs: 10 })
  const leaving = new AbortController()
  const { events } = await openEvents(url, KEY, { signal: leaving.signal })
  let comments = 0
  for await (const { type } of events) {
    assert.equal(type, ':')
    if (++comments === 5) break
  }
  leaving.abort()
})

test('a client that does not read slows the log down instead of filling memory, and gets all of it in the end', async (t) => {
  const text = 'x'.repeat(16 * 1024)
  const total = 4_000 // 64 MiB
  let made = 0
  const { url } = await serve(t, async function* () {
    for (; made < total; made++) {
      yield { entries: [entry(made + 1, text)], isLast: false }
      await turn()
    }
    yield { entries: [], isLast: true }
  })
  const { port, pathname } = new URL(url)
  const socket = connect(Number(port), '127.0.0.1')
  t.after(() => socket.destroy())
  socket.pause()
  socket.write(
    `GET ${pathname} HTTP/1.1\r\nhost: a\r\nauthorization: ${asCaller.authorization}\r\nconnection: close\r\n\r\n`,
  )
  await waitUntilUnchanged(() => made)
  assert.ok(made < total / 2, `${String(made)} of ${String(total)} lines were taken while nobody read`)
  let arrived = 0
  socket.on('data', (data) => (arrived += data.length))
  socket.resume()
  await once(socket, 'end', { signal: AbortSignal.timeout(60_000) })
  assert.ok(arrived > total * text.length)
})

test('when a client disconnects, the server stops reading the log for it', async (t) => {
  const { url, asked } = await serve(t, silent)
  const leaving = new AbortController()
  await openEvents(url, KEY, { signal: leaving.signal })
  assert.equal(asked[0]?.signal.aborted, false)
  leaving.abort()
  await waitUntil(() => asked[0]?.signal.aborted === true)
})

test('closing the server ends the streams at once and without errors, so that clients reconnect', async (t) => {
  const { url, close } = await serve(t, silent)
  const open = await Promise.all([openEvents(url, KEY), openEvents(url, KEY)])
  await close()
  for (const { events } of open) for await (const { type } of events) assert.equal(type, ':')
})
