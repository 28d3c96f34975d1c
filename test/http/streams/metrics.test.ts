import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, before, test } from 'node:test'
import type { WebSocket } from 'ws'
import { createSandbox } from '../../../src/control/sandboxes/create-sandbox.ts'
import { stopSandbox } from '../../../src/control/sandboxes/stop-sandbox.ts'
import { readMetrics } from '../../../src/control/streams/read-metrics.ts'
import type { Sandbox } from '../../../src/domain/sandboxes/sandbox.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { parseServerEvents } from '../../../src/lib/streams/server-events.ts'
import type { Driver } from '../../../src/worker/drivers/driver.ts'
import { makeSimulatedDriver } from '../../../src/worker/drivers/simulated.ts'
import { openSandboxMetrics, type SandboxMetrics } from '../../../src/worker/metrics/sandbox-metrics.ts'
import { assertReplyMatchesContract } from '../../support/contract.ts'
import { addKey, addOrg } from '../../support/orgs.ts'
import { PLAIN_SPEC } from '../../support/spec.ts'
import { waitUntil } from '../../support/wait.ts'
import { makeWorkerWorld, type WorkerWorld } from '../../support/worker-world.ts'

// What sandboxes use is read over HTTP from a control plane, which asks the worker that keeps it.

let world: WorkerWorld
let metrics: SandboxMetrics
let driver: Driver
let key: string
let dir: string
let endLife: () => Promise<void>

before(async () => {
  world = await makeWorkerWorld()
  dir = mkdtempSync(join(tmpdir(), 'sandyard-metrics-'))
  metrics = await openSandboxMetrics({ dir, retentionMs: 3_600_000, clock: systemClock, log: makeLog('silent') })
  driver = makeSimulatedDriver({ clock: systemClock, metrics })
  key = await addKey(world.control.deps, world.control.caller.org_id, { scopes: ['read'] })
  endLife = world.runWorker(driver, { metrics })
})
after(async () => {
  await world.close()
  await driver.close()
  await metrics.close()
  rmSync(dir, { recursive: true })
})

type Answer = { readonly status: number; readonly body: any } // eslint-disable-line

async function get(path: string, withKey = key): Promise<Answer> {
  const reply = await fetch(`${world.url}${path}`, { headers: { authorization: `Bearer ${withKey}` } })
  return { status: reply.status, body: JSON.parse(await reply.text()) }
}

function make({ start }: { readonly start: boolean }): Promise<Sandbox> {
  const asked = { spec: PLAIN_SPEC, name: null, slug: null, registry: { mode: 'auto' }, waitMs: null } as const
  const { deps, caller } = world.control
  return createSandbox(deps, caller, { ...asked, start, signal: AbortSignal.timeout(60_000) })
}

async function runOne(): Promise<Sandbox> {
  const box = await world.create()
  await waitUntil(async () => (await world.statusOf(box.id)).status === 'running')
  await waitUntil(() => metrics.latest(null).some(({ sandbox_id }) => sandbox_id === box.id))
  return box
}

async function stop({ id }: Sandbox): Promise<void> {
  await stopSandbox(world.control.deps, world.control.caller, { id })
  await waitUntil(async () => (await world.statusOf(id)).status === 'stopped')
}

test('the use of a sandbox is read while it runs and after its end, in the steps that were asked for', async () => {
  const box = await runOne()
  const path = `/v1/sandboxes/${box.id}/metrics`
  const { status, body } = await get(`${path}?step=1`)
  assert.equal(status, 200)
  assertReplyMatchesContract('read_sandbox_metrics', 200, body)
  assert.equal(body.step_secs, 1)
  assert.ok(body.data.length >= 1)
  await stop(box)
  const later = await get(`${path}?step=60`)
  assert.ok(later.body.data.length >= 1 && later.body.step_secs === 60, JSON.stringify(later))
  assert.equal((await get(path)).body.step_secs, 10)
  // Seconds are kept for an hour, so the answer has minutes.
  assert.equal((await get(`${path}?since=${ago(7_200_000)}&until=${ago(7_100_000)}&step=1`)).body.step_secs, 60)
})

const ago = (ms: number): string => new Date(Date.now() - ms).toISOString()

test('a range that has too many points, or ends before it begins, is refused by its field', async () => {
  const path = `/v1/sandboxes/${(await world.create()).id}/metrics`
  for (const [query, field] of [
    [`since=${ago(86_400_000)}&step=1`, 'query.step'],
    [`since=${ago(1_000)}&until=${ago(2_000)}`, 'query.since'],
    ['step=0', 'query.step'],
    ['stepp=1', 'query.stepp'],
  ] as const) {
    const { status, body } = await get(`${path}?${query}`)
    assert.deepEqual([status, body.error.details.field], [400, field], JSON.stringify(body))
  }
})

test('a sandbox that never ran has no points, and that of another organization isn’t found', async () => {
  const never = await make({ start: false })
  assert.deepEqual((await get(`/v1/sandboxes/${never.id}/metrics`)).body.data, [])
  const other = await addOrg(world.control.deps, 'metrics-other')
  const foreign = await addKey(world.control.deps, other.org_id)
  for (const path of [`/v1/sandboxes/${never.id}/metrics`, `/v1/sandboxes/${never.id}/metrics/stream`])
    assert.equal((await get(path, foreign)).body.error.code, 'sandbox_not_found')
  assert.deepEqual((await get('/v1/metrics', foreign)).body.data, [])
})

test('a worker that opens its stream and says nothing is unavailable', async () => {
  const box = await runOne()
  const silent = { ...world.control.deps, openStream: () => Promise.resolve(new PassThrough()) }
  const asked = { id: box.id, range: { sinceMs: 0, untilMs: 1_000 }, stepMs: 1_000 }
  // A silent worker must be given up before this client leaves.
  const reading = readMetrics(silent, world.control.caller, { ...asked, signal: AbortSignal.timeout(30_000) })
  await assert.rejects(reading, { code: 'unavailable' })
  await stop(box)
})

test('a worker that dies in the middle of its answer is unavailable', async () => {
  const box = await runOne()
  await endLife()
  const real = world.connect()
  const endDying = world.runWorker(driver, {
    metrics,
    controlPlane: {
      ...real,
      dial: async (...args) => dyingInAnswer(await real.dial(...args)),
      async standBy(...args) {
        const { asked, socket } = await real.standBy(...args)
        return { asked, socket: dyingInAnswer(socket) }
      },
    },
  })
  const { status, body } = await get(`/v1/sandboxes/${box.id}/metrics`)
  assert.deepEqual([status, body.error.code], [503, 'unavailable'])
  await endDying()
  endLife = world.runWorker(driver, { metrics })
  await stop(box)
})

/** Sends half of the first message, and then breaks the connection. */
function dyingInAnswer(socket: WebSocket): WebSocket {
  const send = socket.send.bind(socket)
  return Object.assign(socket, {
    send(data: Buffer, options: object) {
      send(data.subarray(0, data.length / 2), options, () => {
        socket.terminate()
      })
    },
  })
}

test('a follower gets points as they are sampled, and the end when the sandbox has ended', async () => {
  const box = await runOne()
  const reply = await fetch(`${world.url}/v1/sandboxes/${box.id}/metrics/stream`, {
    headers: { authorization: `Bearer ${key}` },
  })
  assert.equal(reply.headers.get('content-type'), 'text/event-stream')
  const types: string[] = []
  for await (const { type, data } of parseServerEvents(reply.body ?? new ReadableStream<Uint8Array>())) {
    types.push(type)
    if (type === 'point') assert.equal(typeof JSON.parse(data).used_vcpus, 'number')
    if (types.length === 2) await stop(box)
  }
  assert.deepEqual([types[0], types.at(-1)], ['point', 'end'])
  const again = await fetch(`${world.url}/v1/sandboxes/${box.id}/metrics/stream`, {
    headers: { authorization: `Bearer ${key}` },
  })
  assert.match(await again.text(), /event: end/)
})

test('an organization sees its running sandboxes, and an operator those of all with their workers', async () => {
  const box = await runOne()
  const { body } = await get('/v1/metrics?order=memory&limit=1000')
  assertReplyMatchesContract('read_org_metrics', 200, body)
  const mine = body.data.find(({ id }: { id: string }) => id === box.id)
  assert.ok(mine.latest !== null && !('worker' in mine))
  assert.ok(body.measured >= 1 && body.running >= body.measured)
  assert.equal((await get('/v1/metrics?limit=0')).body.data.length, 0)

  const other = await addOrg(world.control.deps, 'metrics-operator')
  assert.equal((await get('/v1/installation/metrics')).status, 403)
  const operator = await addKey(world.control.deps, other.org_id, { scopes: ['read'], isOperator: true })
  const all = await get('/v1/installation/metrics', operator)
  assertReplyMatchesContract('read_installation_metrics', 200, all.body)
  assert.ok(all.body.data.some(({ id, worker }: { id: string; worker: string }) => id === box.id && worker !== ''))
  await endLife()
  const without = await get('/v1/installation/metrics', operator)
  assert.equal(without.body.silent_workers.length, 1)
  assert.equal(without.body.measured, 0)
  assert.equal((await get(`/v1/sandboxes/${box.id}/metrics`)).body.error.code, 'unavailable')
})
