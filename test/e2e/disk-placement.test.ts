import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// A real server, and a worker process with the simulated driver whose join token allows little disk.

const LIMIT_MS = 60_000
const DISK_MIB = 10_000

describe('disks in placement', { skip: whyNoServer() }, () => {
  let server: RealServer
  let worker: ReturnType<typeof spawnProgram>
  let folder: string
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sandyard-disks-'))
    server = await startServer({ SANDYARD_DRIVER: 'simulated' })
    await operate('drain', 'local') // the worker of the server itself, whose disk is not limited in practice
    const token = await operate('token', '--name', 'far', '--max-disk-mib', String(DISK_MIB))
    worker = spawnProgram(['worker'], {
      SANDYARD_DATA_DIR: folder,
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_JOIN: server.url,
      SANDYARD_JOIN_TOKEN: token.trim(),
    })
    worker.stdout?.resume()
    worker.stderr?.resume()
    await waitUntil(async () => /\nfar\t\S+\tlive\t/.test(await operate('list')), LIMIT_MS)
  })
  after(async () => {
    worker.kill('SIGTERM')
    await waitUntil(() => worker.exitCode !== null || worker.signalCode !== null, LIMIT_MS)
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  })

  test('disks are reserved while their sandboxes exist, and a sandbox that waits for disk says so', async () => {
    const [first, second] = [await create('first'), await create('second')]
    await until(first, 'running')
    await until(second, 'running')
    assert.equal(await diskColumn(), `8000/${String(DISK_MIB)}`)
    const third = await create('third')
    await waitUntil(async () => (await read(third)).status_reason === 'insufficient_capacity', LIMIT_MS)
    const details = (await read(third)).status_details
    const missing = { kind: 'resource', name: 'disk_mib', requested: 4_000, largest_free: 2_000 }
    const accepted = 'a smaller resources.disk_size_mib, fewer sandboxes (stopped ones count too), or a higher SANDYARD_DISK_OVERCOMMIT' // prettier-ignore
    assert.deepEqual([details?.missing, details?.largest_free.disk_mib], [[{ ...missing, accepted }], 2_000])

    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: first } })
    await until(first, 'stopped')
    assert.equal(await diskColumn(), `8000/${String(DISK_MIB)}`)
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: first } })
    await until(first, 'running')
    assert.equal((await read(third)).status_reason, 'insufficient_capacity')

    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: second } })
    await until(third, 'running')
    assert.equal(await diskColumn(), `8000/${String(DISK_MIB)}`)
  })

  async function create(name: string): Promise<string> {
    const body = { name, image: 'localhost/demo', resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 4_000 } }
    return (await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })).id
  }
  function read(id: string): Promise<SandboxBody> {
    return mustCall(server, 'get_sandbox', { params: { sandbox_id: id } })
  }
  async function until(id: string, status: string): Promise<void> {
    await waitUntil(async () => (await read(id)).status === status, LIMIT_MS)
  }
  async function diskColumn(): Promise<string | undefined> {
    const [head = '', ...rows] = (await operate('list')).trim().split('\n')
    const cells = rows.map((row) => row.split('\t')).find(([name]) => name === 'far')
    return cells?.[head.split('\t').indexOf('DISK MIB')]
  }
  /** Runs `sandyard worker …` beside the server, and returns what it printed. */
  async function operate(...words: readonly string[]): Promise<string> {
    const child = spawnProgram(['worker', ...words], { SANDYARD_DATA_DIR: server.dataDir })
    assert.ok(child.stdout !== null && child.stderr !== null)
    const ended = waitUntil(() => child.exitCode !== null, LIMIT_MS)
    const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), ended])
    assert.equal(child.exitCode, 0, `sandyard worker ${words.join(' ')}: ${err}`)
    return out
  }
})
