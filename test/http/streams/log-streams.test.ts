import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import type { LogEntry } from '../../../src/contract/streams/log-protocol.ts'
import { revokeApiKey } from '../../../src/control/orgs/api-keys.ts'
import { authenticate } from '../../../src/control/orgs/authenticate.ts'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { suspendOrg } from '../../../src/control/orgs/orgs.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { OPERATOR_ACTOR, type Caller } from '../../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../../src/domain/ids.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { behaviourByImage } from '../../../src/worker/drivers/simulated-behaviour.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import type { LogStream, SandboxLogs } from '../../../src/worker/logs/logs.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { followLog as follow, openEvents, readLog, type LogEvent } from '../../support/events.ts'
import { makeTestLogs } from '../../support/logs.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// Logs are read over HTTP from a control plane, which streams them from a worker's disk.

let world: WorkerWorld
let logs: SandboxLogs
let removeLogs: () => Promise<void>
let key: string
let endLife: () => Promise<void>

let driver: Driver
const live = (over: Partial<SandboxLogs> = {}): (() => Promise<void>) =>
  world.runWorker(driver, { logs: { ...logs, ...over } })

before(async () => {
  world = await makeWorkerWorld()
  ;({ logs, remove: removeLogs } = await makeTestLogs())
  const startFailure = { reason: 'image', message: 'no such image' } as const
  const behaviourOf = behaviourByImage([{ image: /fails/, behaviour: { startDelayMs: 1_500, startFailure } }])
  driver = makeSimulatedDriver({ clock: systemClock, logs, behaviourOf })
  key = await addKey(world.control.deps, world.control.caller.org_id, { scopes: ['read'] })
  endLife = live()
})
after(async () => {
  await world.close()
  await driver.close()
  await removeLogs()
})

const urlOf = ({ id }: Pick<Sandbox, 'id'>, query = ''): string => `${world.url}/v1/sandboxes/${id}/logs${query}`

function make(whose: Caller, { start }: { readonly start: boolean }): Promise<Sandbox> {
  const asked = { spec: PLAIN_SPEC, name: null, slug: null, registry: { mode: 'auto' }, waitMs: null } as const
  return createSandbox(world.control.deps, whose, { ...asked, start, signal: AbortSignal.timeout(60_000) })
}

/**
 * Starts a sandbox. Resolves with it, and with streams that write to the log as its workload's standard output and
 * error.
 */
async function runOne(): Promise<{ readonly box: Sandbox; readonly out: LogStream; readonly err: LogStream }> {
  const box = await world.create()
  await untilStatus(box, 'running')
  const writer = logs.writerOf(box.id)
  return { box, out: writer.stream('stdout'), err: writer.stream('stderr') }
}

async function stop(box: Pick<Sandbox, 'id'>): Promise<void> {
  await stopSandbox(world.control.deps, world.control.caller, { id: box.id })
  await untilStatus(box, 'stopped')
}

async function untilStatus({ id }: { readonly id: SandboxId }, status: string): Promise<void> {
  await waitUntil(async () => (await world.statusOf(id)).status === status)
}

const texts = (lines: readonly LogEvent[]): readonly string[] => lines.map(({ source, text }) => `${source} ${text}`)

test('a follower gets the existing lines, then new lines as they are written, and the end when the sandbox has ended', async () => {
  const { box, out, err } = await runOne()
  out.write(Buffer.from('one\n'))
  err.write(Buffer.from('two\n'))
  const { lines, ended } = follow(await openEvents(urlOf(box), key))
  await waitUntil(() => lines.length === 2)
  out.write(Buffer.from('three\n'))
  await waitUntil(() => lines.length === 3)
  out.write(Buffer.from('last words'))
  out.end()
  await stop(box)
  assert.equal(await ended, 'end')
  assert.deepEqual(texts(lines), ['stdout one\n', 'stderr two\n', 'stdout three\n', 'stdout last words'])
  const again = await readLog(urlOf(box), key)
  assert.deepEqual(again, { lines, hasEnded: true })
  assert.deepEqual(await readLog(urlOf(box, '?follow=false'), key), again)
})

test('a stream that is resumed from any of its lines repeats none and misses none', async () => {
  const { box, out } = await runOne()
  const written = Array.from({ length: 40 }, (_, count) => `line ${String(count)}\n`)
  for (const text of written) out.write(Buffer.from(text))
  const whole = await readLog(urlOf(box, '?follow=false'), key)
  assert.deepEqual(whole.lines.map(({ text }) => text), written) // prettier-ignore
  for (const [at, { id }] of whole.lines.entries()) {
    const rest = await readLog(urlOf(box, '?follow=false&tail=1'), key, { headers: { 'last-event-id': id } })
    assert.deepEqual(rest, { lines: whole.lines.slice(at + 1), hasEnded: true })
  }
})

test('a stream ends without an error when its time is over, and the next one resumes after it', async () => {
  const [STREAMS, LINES_MAX] = [2, 1_000]
  const { box, out } = await runOne()
  const written: string[] = []
  const seen: LogEvent[] = []
  let ends = 0
  const read = async (): Promise<void> => {
    while (ends < STREAMS || seen.length < written.length) {
      const last = seen.at(-1)
      const headers = last === undefined ? {} : { 'last-event-id': last.id }
      const { lines, hasEnded } = await readLog(urlOf(box, '?follow_timeout=1'), key, { headers })
      assert.equal(hasEnded, false)
      seen.push(...lines)
      ends += 1
    }
  }
  const write = async (): Promise<void> => {
    while (ends < STREAMS && written.length < LINES_MAX) {
      const text = `line ${String(written.length)}\n`
      written.push(text)
      out.write(Buffer.from(text))
      await systemClock.sleep(80)
    }
  }
  await Promise.all([read(), write()])
  assert.deepEqual(seen.map(({ text }) => text), written) // prettier-ignore
})

test('sources, instants and a tail each filter, alone and together', async () => {
  const { box, out, err } = await runOne()
  const writer = logs.writerOf(box.id)
  for (let count = 0; count < 6; count++) {
    out.write(Buffer.from(`o${String(count)}\n`))
    err.write(Buffer.from(`e${String(count)}\n`))
    await systemClock.sleep(5)
  }
  writer.system('a note')
  const { lines: all } = await readLog(urlOf(box, '?follow=false&sources=stdout,stderr,output,system'), key)
  assert.ok(all.some(({ source, text }) => source === 'system' && text === 'a note\n'))
  const program = all.filter(({ source }) => source !== 'system')
  const [since, until] = [program[4]?.ts ?? '', program[9]?.ts ?? '']
  const cases: readonly (readonly [string, readonly LogEvent[]])[] = [
    ['', program],
    ['&sources=stderr', program.filter(({ source }) => source === 'stderr')],
    [`&since=${since}`, program.filter(({ ts }) => ts >= since)],
    [`&until=${until}`, program.filter(({ ts }) => ts < until)],
    ['&tail=3', program.slice(-3)],
    ['&tail=0', []],
    [`&sources=stdout&until=${until}&tail=2`, program.filter(({ source, ts }) => source === 'stdout' && ts < until).slice(-2)],
  ] // prettier-ignore
  for (const [query, expected] of cases) {
    const { lines, hasEnded } = await readLog(urlOf(box, `?follow=false${query}`), key)
    assert.deepEqual(lines, expected, query)
    assert.equal(hasEnded, true)
  }
  // The stream follows the log, but ends at once because `until` is in the past.
  const bounded = await readLog(urlOf(box, `?until=${until}`), key)
  assert.deepEqual(bounded, { lines: program.filter(({ ts }) => ts < until), hasEnded: true })
})

test('following a sandbox that does not run yet is refused with its status; reading its log gives nothing', async () => {
  const { deps, caller } = world.control
  const idle = await make(caller, { start: false })
  const waiting = await world.create({ resources: { vcpus: 4_000, memory_mib: 64, disk_size_mib: null } })
  for (const [box, status] of [[idle, 'created'], [waiting, 'starting']] as const) {
    const reply = await openEvents(urlOf(box), key)
    const error = await reply.refusal()
    assert.equal(reply.status, 409)
    assertReplyMatchesContract('read_sandbox_logs', 409, { error })
    assert.equal(error.code, 'invalid_state_transition')
    assert.equal(Object(error.details).seen, status)
    assert.deepEqual(await readLog(urlOf(box, '?follow=false'), key), { lines: [], hasEnded: true })
  } // prettier-ignore
  await stopSandbox(deps, caller, { id: waiting.id })
  assert.deepEqual(await readLog(urlOf(waiting), key), { lines: [], hasEnded: true })
})

test('a sandbox that is being started is followed to its end, whatever that is', async () => {
  const box = await world.create({ image: 'registry.example/fails:1' })
  await waitUntil(() => placed(box.id))
  const told = await readLog(urlOf(box, '?sources=system'), key)
  assert.deepEqual([texts(told.lines), told.hasEnded], [['system start failed: no such image\n'], true])
  assert.equal((await world.statusOf(box.id)).status, 'failed')
})

test('if the worker doesn’t know a run, its log is requested again as long as the run is open', async () => {
  const { box, out } = await runOne()
  out.write(Buffer.from('one\n'))
  let asked = 0
  await endLife()
  endLife = live({ read: (...args) => (asked++ < 2 ? nothing() : logs.read(...args)) })
  const { lines, ended } = follow(await openEvents(urlOf(box), key))
  await waitUntil(() => lines.length === 1)
  await stop(box)
  assert.equal(await ended, 'end')
  assert.deepEqual(texts(lines), ['stdout one\n'])
  assert.ok(asked > 3) // the worker was asked again and again, and a last time when the run was over
})

async function* nothing(): AsyncGenerator<LogEntry> {
  yield* []
}

async function placed(id: SandboxId): Promise<boolean> {
  const { rows } = await world.control.deps.db.asSystem((q) =>
    q.query({ text: 'SELECT 1 FROM runs WHERE sandbox_id = $1 AND worker_id IS NOT NULL', values: [id] }),
  )
  return rows.length > 0
}

test('revoking a key ends its streams, and a suspended organization may still read', async () => {
  const { deps, caller } = world.control
  const { box, out } = await runOne()
  out.write(Buffer.from('one\n'))
  const other = await addKey(deps, caller.org_id, { scopes: ['read'] })
  const who = await authenticate(deps, other)
  assert.ok(who !== null)
  const { lines, ended } = follow(await openEvents(urlOf(box, '?follow_timeout=3600'), other))
  await waitUntil(() => lines.length === 1)
  await revokeApiKey(deps, caller, who.api_key_id)
  assert.equal(await ended, 'plain')
  const { status } = await openEvents(urlOf(box), other)
  assert.equal(status, 401)

  const guest = await addOrg(deps, 'suspended')
  const guestKey = await addKey(deps, guest.org_id)
  const theirs = await make(guest, { start: true })
  await untilStatus(theirs, 'running')
  logs.writerOf(theirs.id).stream('stdout').write(Buffer.from('theirs\n'))
  await suspendOrg(deps, { org_id: guest.org_id, actor: OPERATOR_ACTOR }, 'unpaid')
  const read = await readLog(urlOf(theirs, '?follow=false'), guestKey)
  assert.deepEqual([texts(read.lines), read.hasEnded], [['stdout theirs\n'], true])
  assert.equal((await openEvents(urlOf(theirs), key)).status, 404)
})

test('open log streams are limited for each organization and in total, and each releases its permit however it ends', async () => {
  const { deps, caller } = world.control
  const { logStreamLimit } = deps
  await waitUntil(() => logStreamLimit.permitsInUse === 0)
  const { box } = await runOne()
  const leaving = new AbortController()
  await openEvents(urlOf(box), key, { signal: leaving.signal })
  const places = Array.from({ length: 49 }, () => logStreamLimit.acquire(caller))
  const refused = async (whose: Pick<Sandbox, 'id'>, by: string): Promise<unknown> => {
    const reply = await openEvents(urlOf(whose), by)
    const error = await reply.refusal()
    assert.equal(reply.status, 429)
    assertReplyMatchesContract('read_sandbox_logs', 429, { error })
    assert.equal(error.code, 'rate_limited')
    assert.ok(Number(reply.headers.get('retry-after')) > 0)
    return error.details
  }
  const changes = (variable: string): string => `end unused log streams; the operator can change it with ${variable}`
  const share = { limit: 'log_streams_per_org', max: 50, current: 50 }
  assert.deepEqual(await refused(box, key), { ...share, how_to_change: changes('SANDYARD_LOG_STREAMS_PER_ORG') })

  const guest = await addOrg(deps, 'beside')
  const third = await addOrg(deps, 'third')
  const theirs = await make(guest, { start: true })
  await untilStatus(theirs, 'running')
  const guestKey = await addKey(deps, guest.org_id)
  assert.equal((await readLog(urlOf(theirs, '?follow=false'), guestKey)).hasEnded, true)
  places.push(...Array.from({ length: 50 }, (_, at) => logStreamLimit.acquire(at < 49 ? guest : third)))
  const all = { limit: 'log_streams', max: 100, current: 100 }
  assert.deepEqual(await refused(theirs, guestKey), { ...all, how_to_change: changes('SANDYARD_LOG_STREAM_CAPACITY') })
  for (const release of places) release()
  leaving.abort()
  await waitUntil(() => logStreamLimit.permitsInUse === 0)
})

test('while a client does not read, the server, the worker and its reads from disk pause', async () => {
  const { box } = await runOne()
  const text = 'x'.repeat(16 * 1024)
  let made = 0
  async function* endless(): AsyncGenerator<LogEntry> {
    for (;;) {
      yield { position: { generation: 1, offset: ++made }, source: 'stdout', ts: '2026-11-21T10:00:00.000Z', text }
      await turn()
    }
  }
  await endLife()
  endLife = live({ read: endless })
  const leaving = new AbortController()
  await openEvents(urlOf(box), key, { signal: leaving.signal })
  await waitUntilUnchanged(() => made)
  assert.ok(made < 4_000, `${String(made)} lines of 16 KiB were taken while nobody read`)
  leaving.abort()
  await endLife()
  endLife = live()
})

test('a worker that goes away ends the stream without an error; while it is gone its logs are refused as unavailable', async () => {
  const { box, out } = await runOne()
  out.write(Buffer.from('one\n'))
  const { lines, ended } = follow(await openEvents(urlOf(box), key))
  await waitUntil(() => lines.length === 1)
  await endLife()
  assert.equal(await ended, 'plain')
  const reply = await openEvents(urlOf(box), key)
  const error = await reply.refusal()
  assert.equal(reply.status, 503)
  assertReplyMatchesContract('read_sandbox_logs', 503, { error })
  assert.equal(error.code, 'unavailable')
  assert.ok(Number(reply.headers.get('retry-after')) > 0)
  endLife = live()
  assert.deepEqual((await readLog(urlOf(box, '?follow=false'), key)).lines, lines)
})
