import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall, type SandboxBody } from '../support/api.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { runMsb } from '../support/msb.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { dumpTables } from '../support/server-database.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The whole program: waits and their limit, the time limits of sandboxes, when names become free, secrets that appear nowhere, one server
// for each data folder, and how the server stops and restarts.

const SECRET_VALUE = 'value-of-a-variable-that-nobody-may-see'
const SECRET = 'inline-password-that-nobody-may-see'
/** The maximum time from SIGTERM to the end of the process. */
const STOP_MOST_MS = 5_000

describe('the service', { skip: whyNoServer() }, () => {
  let server: RealServer

  before(async () => {
    server = await startServer({ SANDYARD_WAIT_CAPACITY: '1', SANDYARD_LOG_LEVEL: 'debug' })
  })
  after(() => server.close())

  const body = (name: string, more: object = {}) => ({ name, image: DEMO_IMAGE, ...more })
  const named = (name: string) => call(server, 'get_sandbox_by_name', { params: { name } })
  const wait = { start: 'true', wait_for: 'running' }

  /** Waits until a sandbox satisfies the condition. Resolves with the sandbox, or with null once it is gone. */
  async function until(name: string, isMeant: (sandbox: SandboxBody | null) => boolean): Promise<SandboxBody | null> {
    const deadlineMs = systemClock.monotonicMs() + 60_000
    for (;;) {
      const answer = await named(name)
      const seen = answer.isRefusal ? null : answer.body
      if (isMeant(seen)) return seen
      assert.ok(systemClock.monotonicMs() < deadlineMs, `${name} is still ${JSON.stringify(seen)}`)
      await systemClock.sleep(25)
    }
  }

  /** A sandbox that stays `starting`, because no worker has enough capacity. */
  const tooBig = { resources: { vcpus: 16, memory_mib: 512 }, lifecycle: { ephemeral: false } }

  test('a wait that times out gets 200 with the current sandbox and the reason why it waits', async () => {
    const filler = body('filler', { resources: { vcpus: 8, memory_mib: 64 } })
    await mustCall(server, 'create_sandbox', { query: wait, body: filler })
    const from = systemClock.monotonicMs()
    const query = { ...wait, wait_timeout: '1' }
    const waiting = await mustCall(server, 'create_sandbox', { query, body: body('waiting', tooBig) })
    const tookMs = systemClock.monotonicMs() - from
    assert.equal(waiting.status, 'starting')
    assert.ok(tookMs >= 950, `it took ${String(tookMs)} ms`)
    await until('waiting', (seen) => seen?.status_reason === 'insufficient_capacity')
  })

  test('when the limit of waiting requests is reached, another one gets 429 with Retry-After and creates nothing', async () => {
    const held = call(server, 'start_sandbox_by_name', {
      params: { name: 'waiting' },
      query: { wait_for: 'running', wait_timeout: '2' },
    })
    for (let tries = 0; ; tries++) {
      assert.ok(tries < 20, 'nothing was refused')
      const answer = await call(server, 'create_sandbox', { query: wait, body: body(`refused-${String(tries)}`) })
      if (!answer.isRefusal) continue // the waiting request had not acquired the only permit yet
      assert.deepEqual([answer.status, answer.body.error.code], [429, 'rate_limited'])
      assert.ok(Number(answer.headers.get('retry-after')) >= 1)
      assert.equal((await named(`refused-${String(tries)}`)).status, 404)
      break
    }
    assert.equal((await held).status, 200)
    const unwaiting = await mustCall(server, 'stop_sandbox_by_name', { params: { name: 'waiting' } })
    assert.equal(unwaiting.status, 'stopped')
    await mustCall(server, 'delete_sandbox_by_name', { params: { name: 'filler' } })
  })

  test('max_duration_secs ends a busy sandbox in time, and its events say why', async () => {
    const lifecycle = { max_duration_secs: 1 }
    await mustCall(server, 'create_sandbox', { query: wait, body: body('limited', { lifecycle }) })
    const from = systemClock.monotonicMs()
    await runMsb(server, ['exec', 'limited', '--', 'sleep', '60'])
    const ended = await until('limited', (seen) => seen?.status === 'stopped')
    assert.ok(systemClock.monotonicMs() - from < 30_000, 'the command ran on')
    const events = await mustCall(server, 'list_events', { query: { limit: '100' } })
    const causes = events.data.filter(({ payload }) => JSON.stringify(payload).includes(ended?.id ?? 'none'))
    assert.ok(causes.some(({ payload }) => JSON.stringify(payload).includes('max_duration')))
  })

  test('idle_timeout_secs stops an unused sandbox, and no other', async () => {
    const lifecycle = { idle_timeout_secs: 2 }
    await mustCall(server, 'create_sandbox', { query: wait, body: body('busy', { lifecycle }) })
    const talking = await runMsb(server, [
      'exec',
      'busy',
      '--',
      'sh',
      '-c',
      'for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done',
    ])
    assert.equal(talking.code, 0, talking.stderr)
    const used = await named('busy')
    assert.ok(!used.isRefusal && used.body.status === 'running')
    await until('busy', (seen) => seen?.status === 'stopped')
  })

  test('an ephemeral sandbox frees its name when it ends, is readable by id for 5 s, then is gone', async () => {
    const lifecycle = { ephemeral: true }
    const ended = body('brief', { lifecycle, runtime: { cmd: ['sh', '-c', 'exit 0'] } })
    let beforeStopMs = systemClock.monotonicMs()
    const first = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body: ended })
    const params = { sandbox_id: first.id }
    let last = await call(server, 'get_sandbox', { params })
    while (!last.isRefusal && !['stopped', 'failed'].includes(last.body.status)) {
      // Before it stopped. The clocks of two processes differ, so `stopped_at` can't be compared with ours.
      beforeStopMs = systemClock.monotonicMs()
      last = await call(server, 'get_sandbox', { params })
    }
    assert.ok(!last.isRefusal && last.body.status === 'stopped', last.text)
    const again = await mustCall(server, 'create_sandbox', { body: body('brief') })
    assert.notEqual(again.id, first.id)
    await waitUntil(async () => (await call(server, 'get_sandbox', { params })).isRefusal, 60_000)
    const lingeredMs = systemClock.monotonicMs() - beforeStopMs
    assert.ok(lingeredMs >= 5_000, `it was readable for ${String(lingeredMs)} ms`)
  })

  test('the name and slug of a running sandbox are free as soon as its deletion is answered', async () => {
    const own = body('reused', { slug: 'reused-slug' })
    for (let round = 0; round < 3; round++) {
      const made = await mustCall(server, 'create_sandbox', { query: wait, body: own })
      assert.equal(made.status, 'running')
      await mustCall(server, 'delete_sandbox', { params: { sandbox_id: made.id } })
    }
  })

  test('the log has one line for each step of a sandbox, with its sandbox and organization, and no stack for a mistyped image', async () => {
    const linesOf = (name: string): readonly Readonly<Record<string, unknown>>[] =>
      server
        .output()
        .split('\n')
        .flatMap((line) => {
          if (!line.startsWith('{')) return []
          const parsed: Readonly<Record<string, unknown>> = JSON.parse(line)
          return parsed['name'] === name && parsed['level'] !== 'debug' ? [parsed] : []
        })
    const env = [{ key: 'TOKEN', value: SECRET_VALUE }]
    const made = await mustCall(server, 'create_sandbox', {
      query: wait,
      body: body('told', { env, lifecycle: { ephemeral: false } }),
    })
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: made.id } })
    await until('told', (sandbox) => sandbox?.status === 'stopped')
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: made.id } })
    await mustCall(server, 'create_sandbox', {
      query: wait,
      body: body('mistyped', { image: 'localhost/demoo', lifecycle: { ephemeral: false } }),
    })
    await waitUntil(
      () =>
        linesOf('told').some(({ msg }) => msg === 'sandbox deleted') &&
        linesOf('mistyped').some(({ msg }) => msg === 'sandbox failed'),
    )
    assert.deepEqual(
      linesOf('told').map(({ msg }) => msg),
      [
        'sandbox created',
        'sandbox starts',
        'sandbox placed on a worker',
        'sandbox runs',
        'sandbox stops',
        'sandbox stopped',
        'sandbox deleted',
      ],
    )
    for (const line of [...linesOf('told'), ...linesOf('mistyped')]) {
      assert.equal(line['level'], 'info')
      assert.match(String(line['time']), /^\d{4}-\d\d-\d\dT[\d:.]+Z$/)
      assert.match(String(line['sandbox_id']), /^[0-9a-f-]{36}$/)
      assert.match(String(line['org_id']), /^[0-9a-f-]{36}$/)
      assert.match(String(line['org']), /^[a-z]/)
      assert.doesNotMatch(JSON.stringify(line), /stack/)
    }
    const failed = linesOf('mistyped').filter(({ msg }) => msg === 'sandbox failed')
    assert.equal(failed.length, 1)
    assert.match(String(failed[0]?.['message']), /localhost\/demoo/)
    assert.match(String(linesOf('told').at(-1)?.['actor']), /^key /)
    assert.ok(!server.output().includes(SECRET_VALUE))
  })

  test('a registry password appears in no reply, event, log line or table, except encrypted', async () => {
    const registry = { mode: 'inline', username: 'someone', password: SECRET }
    const image = '127.0.0.1:9/not/there:1'
    const asked = { name: 'secret', image, registry }
    const answers = [await call(server, 'create_sandbox', { body: asked })]
    const before = await dumpTables(server)
    answers.push(
      await call(server, 'start_sandbox_by_name', { params: { name: 'secret' }, query: { wait_for: 'running' } }),
    )
    answers.push(await named('secret'))
    answers.push(
      await call(server, 'create_sandbox', { body: { ...asked, registry: { ...registry, surprise: SECRET } } }),
    )
    const events = await call(server, 'list_events', { query: { limit: '100' } })
    const afterwards = await dumpTables(server)
    assert.ok(before.includes('secret'), 'the dump has the sandbox')
    for (const seen of [...answers.map((answer) => answer.text), events.text, before, afterwards, server.output()])
      for (const form of [SECRET, Buffer.from(SECRET).toString('base64'), Buffer.from(SECRET).toString('hex')])
        assert.ok(!seen.includes(form), seen.slice(0, 500))
    assert.ok(
      !server.output().includes(server.key) && !afterwards.includes(server.key),
      'the API key is no secret either',
    )
  })

  test('a second server on the same data folder is refused with the reason, and the first continues', async () => {
    const second = spawnProgram(['up'], { SANDYARD_DATA_DIR: server.dataDir, SANDYARD_PORT: '0' })
    assert.ok(second.stdout !== null && second.stderr !== null)
    const [said, complained] = await Promise.all([text(second.stdout), text(second.stderr)])
    assert.equal(await waitUntil(() => second.exitCode ?? undefined), 1, said)
    assert.match(complained, /data folder .* is in use by process \d+/)
    assert.match(complained, new RegExp(String(server.pid())))
    assert.equal((await call(server, 'get_readiness')).status, 200)
  })

  test('SIGTERM ends it within seconds, and the next start takes over the sandboxes that kept running', async () => {
    await mustCall(server, 'create_sandbox', { query: wait, body: body('kept') })
    await runMsb(server, ['exec', 'kept', '--', 'sh', '-c', 'setsid sleep 76543 > /dev/null 2>&1 < /dev/null &'])
    await server.stop()
    await server.start({ SANDYARD_SHUTDOWN: 'keep' })
    await mustCall(server, 'start_sandbox_by_name', { params: { name: 'kept' }, query: { wait_for: 'running' } })
    await runMsb(server, ['exec', 'kept', '--', 'sh', '-c', 'setsid sleep 76543 > /dev/null 2>&1 < /dev/null &'])
    assert.ok((await server.stop()) < STOP_MOST_MS)
    assert.ok(
      (await findLeftovers(server.dataDir)).some((line) => line.startsWith('container')),
      'the sandbox must keep running',
    )
    await server.start()
    const found = await runMsb(server, ['exec', 'kept', '--', 'pgrep', '-f', '^sleep 76543'])
    assert.equal(found.code, 0, found.stderr)
    assert.ok((await server.stop()) < STOP_MOST_MS)
    assert.deepEqual(await findLeftovers(server.dataDir), [])
    assert.match(readFileSync(`${server.dataDir}/database/postgres/data/PG_VERSION`, 'utf8'), /\d/)
    await server.start()
    const after = await named('kept')
    assert.ok(!after.isRefusal && after.body.status === 'stopped', after.text)
  })
})
