import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, suite, test } from 'node:test'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import { runCommand } from '../../src/lib/run-command.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { ROOT } from '../support/documents.ts'
import { startExternalPostgres } from '../support/external-postgres.ts'
import { runMsb } from '../support/msb.ts'
import { makeProductImage } from '../support/product-image.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startForward } from '../support/forward.ts'
import { underUpgradeLoad } from '../support/upgrade-load.ts'
import { waitUntil } from '../support/wait.ts'

// The job files of packaging/nomad, on a real Nomad of one node that has the Debian package.

/** The folder of the machine that `npm run test:nomad` has started (setup/engines/machine.mjs), or undefined in other runs. */
const MACHINE = process.env['SANDYARD_TEST_NOMAD']
const skip = MACHINE === undefined ? '`npm run test:nomad` runs it, because it starts a Nomad' : false
const LIMIT_MS = 180_000
const SERVER_JOB = join(ROOT, 'packaging/nomad/sandyard-server.nomad.hcl')
const WORKER_JOB = join(ROOT, 'packaging/nomad/sandyard-worker.nomad.hcl')
const KEY = 'test-key-of-the-first-organization'

suite('the jobs of Nomad', { skip, timeout: 25 * 60_000 }, () => {
  const machine = MACHINE ?? ''
  const undo = new AsyncDisposableStack()
  let cloud: { url: string; key: string; clientEnv: Record<string, string> }
  const workerFlags = ['-var', `data_dir=${join(machine, 'worker')}`, '-var', 'drain_seconds=5']

  before(async () => {
    const { deb } = await makeProductImage(machine)
    const pid = readFileSync(join(machine, 'init.pid'), 'utf8')
    await run('nsenter', `--target=${pid}`, '--mount', '--', 'dpkg-deb', '-x', deb, '/')
    const database = undo.adopt(await startExternalPostgres(), (one) => one.close())
    await nomad('var', 'put', 'nomad/jobs/sandyard-server', `DATABASE_URL=${database.url}`, `DATABASE_OWNER_URL=${database.ownerUrl}`, `SANDYARD_SECRET_KEY=${Buffer.from(systemRandom.bytes(32)).toString('base64')}`, `SANDYARD_API_KEY=${KEY}`) // prettier-ignore
    await nomad('node', 'meta', 'apply', 'sandyard_worker=true')
    await nomad('job', 'run', SERVER_JOB)
  })
  after(() => undo.disposeAsync())

  test('two servers are healthy, and a worker joins by the token of its node', async () => {
    const token = await nomad('alloc', 'exec', '-t=false', '-i=false', '-task', 'serve', '-job', 'sandyard-server', '/usr/bin/sandyard', 'worker', 'token') // prettier-ignore
    assert.match(token, /^syw_/)
    await nomad('var', 'put', 'nomad/jobs/sandyard-worker', `node=${token.trim()}`)
    await nomad('job', 'run', '-detach', ...workerFlags, WORKER_JOB)
    await connect()
    await waitUntil(async () => (await workerState()) === 'live', LIMIT_MS)
  })

  test('the unmodified client runs a command, reads logs, stops and removes', async () => {
    assert.match(await msb('run', DEMO_IMAGE, '--', 'id'), /^uid=0/)
    await msb('run', '-d', '--name', 'walk', DEMO_IMAGE, '--', 'sh', '-c', 'exec sleep 600')
    assert.equal(await msb('exec', 'walk', '--', 'echo', 'here'), 'here\n')
    await msb('run', '-d', '--name', 'talk', DEMO_IMAGE, '--', 'sh', '-c', 'echo logged; exec sleep 600')
    assert.match(await msb('logs', '-f', 'talk'), /logged/)
    await msb('stop', 'walk')
    await msb('rm', '--force', 'walk', 'talk')
  })

  test('an upgrade of the workers loses no create, and a sandbox that it stopped starts again with its disk', async (t) => {
    await msb('create', '--name', 'steady', DEMO_IMAGE)
    await msb('exec', 'steady', '--', 'sh', '-c', 'echo kept > /root/file')
    const before = await workerAllocation()
    const load = await underUpgradeLoad(cloud, { prefix: 'load', steady: null }, async () => {
      await nomad('job', 'run', '-detach', ...workerFlags, '-var', 'runtime=crun', WORKER_JOB)
      await waitUntil(async () => {
        const { ID, ClientStatus } = await workerAllocation()
        return ID !== before.ID && ClientStatus === 'running'
      }, LIMIT_MS)
      await waitUntil(async () => (await workerState()) === 'live', LIMIT_MS)
    })
    t.diagnostic(`during the upgrade: ${String(load.created.length)} creates`)
    assert.deepEqual(load.failedCreates, [])
    for (const id of load.created) {
      await waitUntil(async () => !/pending|starting/.test((await read(id)).status), LIMIT_MS)
      assert.match((await read(id)).status, /^(created|running|stopped)$/)
    }
    assert.equal(await msb('exec', 'steady', '--', 'cat', '/root/file'), 'kept\n')
  })

  test('a stopped worker leaves no sandbox behind', async () => {
    await nomad('job', 'stop', 'sandyard-worker')
    await waitUntil(async () => (await workerAllocation()).ClientStatus === 'complete', LIMIT_MS)
    const { status } = await mustCall(cloud, 'get_sandbox_by_name', { params: { name: 'steady' } })
    assert.equal(status, 'stopped')
  })

  /** Finds a server as a load balancer does, and trusts its certificate. */
  async function connect(): Promise<void> {
    const [server] = JSON.parse(await nomad('service', 'info', '-json', 'sandyard-server')) as readonly Registration[]
    assert.ok(server)
    const forward = await startForward('127.0.0.1', { host: server.Address, port: server.Port })
    undo.defer(() => forward.close())
    const certificate = await nomad('alloc', 'fs', server.AllocID, 'serve/local/data/tls-certificate.pem')
    setDefaultCACertificates([...getCACertificates('default'), certificate])
    const home = await mkdtemp(join(tmpdir(), 'sandyard-nomad-'))
    undo.defer(() => rm(home, { recursive: true }))
    await mkdir(join(home, 'home'))
    await writeFile(join(home, 'ca.pem'), certificate)
    const url = `https://localhost:${String(forward.port)}`
    const clientEnv = { MSB_BACKEND: 'cloud', MSB_API_URL: url, MSB_API_KEY: KEY, HOME: join(home, 'home'), SSL_CERT_FILE: join(home, 'ca.pem') } // prettier-ignore
    cloud = { url, key: KEY, clientEnv }
  }

  async function msb(...args: readonly string[]): Promise<string> {
    const { code, stdout, stderr } = await runMsb(cloud, args)
    assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
    return stdout
  }

  function read(id: string): Promise<SandboxBody> {
    return mustCall(cloud, 'get_sandbox', { params: { sandbox_id: id } })
  }

  async function workerState(): Promise<string | undefined> {
    const text = await nomad('alloc', 'exec', '-t=false', '-i=false', '-task', 'serve', '-job', 'sandyard-server', '/usr/bin/sandyard', 'worker', 'list', '--json') // prettier-ignore
    const workers = JSON.parse(text) as readonly { readonly name: string; readonly state: string }[]
    return workers.find(({ name }) => name === 'node')?.state
  }

  /** The newest allocation of the worker. */
  async function workerAllocation(): Promise<Allocation> {
    const all = JSON.parse(await nomad('job', 'allocs', '-json', 'sandyard-worker')) as readonly Allocation[]
    return all.toSorted((one, other) => other.CreateIndex - one.CreateIndex)[0] ?? assert.fail('no allocation')
  }
})

type Registration = { readonly Address: string; readonly Port: number; readonly AllocID: string }

type Allocation = { readonly ID: string; readonly ClientStatus: string; readonly CreateIndex: number }

function nomad(...args: readonly string[]): Promise<string> {
  return run('nomad', ...args)
}

async function run(program: string, ...args: readonly string[]): Promise<string> {
  return (await runCommand(program, args, { timeoutMs: 10 * 60_000 })).stdout
}
