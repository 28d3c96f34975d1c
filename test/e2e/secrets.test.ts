import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { after, before, describe, test } from 'node:test'
import { call, mustCall } from '../support/api.ts'
import { dumpTables } from '../support/server-database.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { readProcesses } from '../support/process-list.ts'

// Secrets of sandboxes: their values are nowhere to be found. The driver is simulated, so no request leaves a sandbox.

const VALUE = 'value-of-a-secret-that-nobody-may-see'
const LIVE_VALUE = 'value-that-replaces-it-at-once'
const LATER_VALUE = 'value-for-the-next-start'
const VALUES = [VALUE, LIVE_VALUE, LATER_VALUE]
const HOSTS = [{ type: 'exact', value: 'api.example.com' }]
/** Larger files are disks, which the simulated driver doesn't write. Segments of PostgreSQL's log have 16 MiB. */
const DISK_MIN_MIB = 65
const RUNNING = { start: 'true', wait_for: 'running' }

describe('secrets of sandboxes', { skip: whyNoServer() }, () => {
  let server: RealServer
  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'simulated', SANDYARD_LOG_LEVEL: 'debug' })
  })
  after(() => server.close())

  const create = (name: string, entry: object, more: object = {}) => {
    const entries = [{ env_var: 'API_KEY', value: VALUE, allowed_hosts: HOSTS, ...entry }]
    return call(server, 'create_sandbox', {
      query: RUNNING,
      headers: { 'idempotency-key': `create-${name}` },
      body: { name, image: 'registry.example/box:1', network: { secrets: { entries, ...more } } },
    })
  }

  test('a value is in no reply, event, log line, table, file or command line, while it runs and after a restart', async () => {
    const replies = [await create('kept', {}), await create('kept', {})] // the second is the stored reply
    const [made] = replies
    assert.ok(made?.isRefusal === false, made?.text)
    assert.equal(made.body.status, 'running')
    assert.equal(replies[1]?.text, made.text)
    replies.push(
      await create('extra', { surprise: VALUE }),
      await create('wrong', { value: `${VALUE}\n` }),
      await create('source', { source: { type: 'env', var: 'API_KEY' } }),
      await create('typed', { placeholder: 1 }),
    )
    for (const { isRefusal } of replies.slice(2)) assert.ok(isRefusal)
    const change = (policy: string, value: string) =>
      call(server, 'modify_sandbox', {
        params: { sandbox_id: made.body.id },
        body: { policy, secrets: [{ name: 'API_KEY', value }] },
      })
    const changes = [await change('no_restart', LIVE_VALUE), await change('next_start', LATER_VALUE)]
    for (const { isRefusal, text } of changes) assert.ok(!isRefusal, text)
    changes.push(await change('no_restart', LIVE_VALUE), await change('no_restart', `${LIVE_VALUE}\n`))
    for (const { isRefusal } of changes.slice(2)) assert.ok(isRefusal)
    const { text: list } = await call(server, 'list_sandboxes')
    await findNothing([list, ...[...replies, ...changes].map(({ text }) => text)])
    await server.stop()
    await server.start({ SANDYARD_SHUTDOWN: 'keep' })
    await mustCall(server, 'start_sandbox_by_name', { params: { name: 'kept' }, query: { wait_for: 'running' } })
    await mustCall(server, 'delete_sandbox_by_name', { params: { name: 'kept' } })
    await findNothing([])
  })

  /** Asserts that no value is in these texts, or anywhere else where it could be found. */
  async function findNothing(texts: readonly string[]): Promise<void> {
    const events = await call(server, 'list_events', { query: { limit: '100' } })
    const seen = {
      texts: texts.join('\n'),
      events: events.text,
      tables: await dumpTables(server),
      log: server.output(),
    }
    const processes = readProcesses()
    for (const value of VALUES)
      for (const form of [value, Buffer.from(value).toString('base64'), Buffer.from(value).toString('hex')]) {
        for (const [where, text] of Object.entries({ ...seen, processes })) assert.ok(!text.includes(form), where)
        const files = [server.dataDir, '-xdev', '-type', 'f', '-size', `-${String(DISK_MIN_MIB)}M`]
        const { stdout } = spawnSync('find', [...files, '-exec', 'grep', '-laF', '-e', form, '{}', '+'], {
          encoding: 'utf8',
        })
        assert.equal(stdout, '', 'a file of the data folder has the value')
      }
  }
})
