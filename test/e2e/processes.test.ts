import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { get } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { childrenOf, isRunning, readCommandLine, sendSignal } from '../support/process-tree.ts'
import { readRows } from '../support/server-database.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// `--processes`: several server processes share one port. Each is a replica with an address of its own.

const PROCESSES = 3
const LIMIT_MS = 60_000

describe('server processes that share a port', () => {
  let server: RealServer

  before(async () => {
    server = await startServer({ SANDYARD_DRIVER: 'simulated', SANDYARD_PROCESSES: String(PROCESSES) })
  })
  after(() => server.close())

  const furtherPids = (): readonly number[] =>
    childrenOf(server.pid()).filter((pid) => readCommandLine(pid).startsWith('sandyard: server'))

  /** The addresses of all live processes, once there are as many as should be. */
  const ownUrls = (): Promise<readonly string[]> =>
    waitUntil(async () => {
      const rows = await readRows<{ url: string }>(server, 'SELECT url FROM replicas ORDER BY url')
      const answers = await Promise.all(rows.map(({ url }) => fetch(`${url}/readyz`).catch(() => null)))
      const live = rows.filter((_, index) => answers[index]?.status === 200).map(({ url }) => url)
      return live.length === PROCESSES ? live : false
    }, LIMIT_MS)

  test('each answers at an address of its own, and none of them at the shared one only', async () => {
    const urls = await ownUrls()
    assert.equal(new Set(urls).size, PROCESSES)
    assert.ok(!urls.includes(server.url))
    assert.equal(furtherPids().length, PROCESSES - 1)
  })

  test('what one has done, all see; a request that is repeated at another is done once', async () => {
    const urls = await ownUrls()
    const headers = { 'idempotency-key': randomUUID() }
    const body = { name: 'once', image: 'localhost/demo' }
    const answers = await Promise.all(
      urls.map((url) => mustCall({ url, key: server.key }, 'create_sandbox', { headers, body })),
    )
    assert.equal(new Set(answers.map(({ id }) => id)).size, 1)
    for (const url of urls) {
      const found = await mustCall({ url, key: server.key }, 'get_sandbox_by_name', { params: { name: 'once' } })
      assert.equal(found.id, answers[0]?.id)
    }
  })

  test('after kill -9 of one, the others answer at the shared port, and it comes back', async () => {
    const [killed] = furtherPids()
    assert.ok(killed !== undefined)
    sendSignal(killed, 'SIGKILL')
    // Until its last thread has ended, it may be given connections, which its end resets.
    await waitUntil(() => server.output().includes(`"server_pid":${String(killed)}`), LIMIT_MS)
    for (let requests = 0; requests < 50; requests++)
      assert.equal(await statusOfNewConnection(`${server.url}/readyz`), 200)
    await waitUntil(() => furtherPids().length === PROCESSES - 1 && !furtherPids().includes(killed), LIMIT_MS)
    assert.equal((await ownUrls()).length, PROCESSES)
  })

  test('when the first one is killed with -9, the others end too, and the next start is whole', async () => {
    const further = furtherPids()
    await server.kill9()
    await waitUntil(() => !further.some(isRunning))
    await server.start()
    await ownUrls()
    await mustCall(server, 'get_sandbox_by_name', { params: { name: 'once' } })
  })
})

/** Sends a request over a connection of its own: one that is kept could be that of a process that was just killed. */
function statusOfNewConnection(url: string): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    get(url, { agent: false }, (response) => {
      response.resume().once('end', () => resolve(response.statusCode))
    }).once('error', reject)
  })
}
