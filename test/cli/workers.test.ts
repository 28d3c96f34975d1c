import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { isJoinToken } from '../../src/domain/orgs/api-key.ts'
import { makeTestControl, type TestControl } from '../support/control.ts'
import { freePort } from '../support/free-port.ts'
import { spawnProgram } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// The commands of the `sandyard` program about workers. test/e2e/workers.test.ts tests running workers.

let control: TestControl
const folder = mkdtempSync(join(tmpdir(), 'sandyard-cli-workers-'))
before(async () => {
  control = await makeTestControl()
})
after(async () => {
  await control.close()
  rmSync(folder, { recursive: true, force: true })
})

type Said = { readonly code: number | null; readonly out: string; readonly err: string }

async function sandyard(line: string, env: Readonly<Record<string, string>> = {}): Promise<Said> {
  const settings = { SANDYARD_DATA_DIR: folder, DATABASE_URL: control.databaseUrl, ...env }
  const child = spawnProgram(line.split(' '), settings)
  assert.ok(child.stdout !== null && child.stderr !== null)
  child.stdin?.end()
  const [out, err] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
  return { code: child.exitCode, out, err }
}

test('a join token is printed alone for scripts, and with its name and times as JSON', async () => {
  const plain = await sandyard('worker token')
  assert.ok(isJoinToken(plain.out.trim()), plain.err)
  const { out } = await sandyard('worker token --name w-1 --expires-in 2h --json')
  const made: {
    readonly name: string
    readonly token: string
    readonly created_at: string
    readonly expires_at: string
  } = JSON.parse(out)
  assert.equal(made.name, 'w-1')
  assert.ok(isJoinToken(made.token))
  assert.equal(Date.parse(made.expires_at) - Date.parse(made.created_at), 2 * 3_600_000)
})

test('workers are listed, drained, resumed and removed by name, and a missing or surplus argument is refused', async () => {
  const { deps } = control
  const id = deps.uuids.next()
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO workers (id, name, credential_sha256, created_at) VALUES ($1, 'w-2', sha256('w-2'), now())`,
      values: [id],
    }),
  )
  assert.match((await sandyard('worker list')).out, /^NAME\tID\tSTATE.*\nw-2\t[0-9a-f-]+\tjoined\t/)
  assert.match(
    (await sandyard('worker drain w-2 --deadline 10m --wait')).out,
    /until 20.*, and are asked to stop then\n0 runs\n/,
  )
  assert.match((await sandyard('worker list')).out, /\tdraining until 20/)
  assert.equal((await sandyard('worker resume w-2')).out, 'w-2 gets runs again\n')
  assert.equal((await sandyard('worker remove w-2')).out, 'w-2 is removed\n')
  assert.match((await sandyard('worker list')).out, /\tremoved at 20/)
  for (const [line, why] of [
    ['worker remove w-2', /there is no worker 'w-2'/],
    ['worker drain', /missing required argument 'name'/],
    ['worker drain w-2 --deadline soon', /--deadline takes a whole number/],
    ['worker list w-2', /too many arguments for 'list'/],
    ['worker sing', /unknown command 'worker sing'; there is worker token, list, drain/],
  ] as const) {
    const { code, out, err } = await sandyard(line)
    assert.notEqual(code, 0, line)
    assert.equal(out, '', line)
    assert.match(err, why)
  }
})

test('a worker without a URL or a token says which is missing, and names an invalid URL', async () => {
  const dataDir = { SANDYARD_DATA_DIR: join(folder, 'new'), SANDYARD_DRIVER: 'simulated' }
  assert.match((await sandyard('worker', dataDir)).err, /--join URL \(or SANDYARD_JOIN\)/)
  assert.match((await sandyard('worker --join http://127.0.0.1:9', dataDir)).err, /a join token is needed/)
  assert.match((await sandyard('worker --join http://127.0.0.1:9 --token-stdin', dataDir)).err, /and there was none/)
  assert.match((await sandyard('worker --join 127.0.0.1:9', dataDir)).err, /--join is "127.0.0.1:9"; accepted: http/)
})

test('a worker whose control plane is unreachable says so and retries, with its token hidden and its credential stored', async () => {
  const dataDir = join(folder, 'waits')
  const args = ['worker', '--join', `http://127.0.0.1:${String(await freePort())}`, '--token', 'syw_secret']
  const child = spawnProgram(args, { SANDYARD_DATA_DIR: dataDir, SANDYARD_DRIVER: 'simulated' })
  try {
    let said = ''
    child.stdout?.setEncoding('utf8').on('data', (more: string) => {
      said += more
    })
    await waitUntil(() => /can't be joined: .*ECONNREFUSED.*retrying in 2 s/.test(said), 30_000)
    assert.ok(!readFileSync(`/proc/${String(child.pid)}/cmdline`, 'utf8').includes('syw_secret'))
    const identity = join(dataDir, 'worker.json')
    assert.ok(existsSync(identity))
    assert.ok(!readFileSync(identity, 'utf8').includes('syw_secret'))
    child.kill('SIGTERM')
    await waitUntil(() => child.exitCode !== null, 30_000)
    assert.equal(child.exitCode, 0)
  } finally {
    child.kill('SIGKILL')
  }
})

test('on a worker’s machine the commands for operators create no empty database', async () => {
  const dataDir = join(folder, 'waits')
  const { code, err } = await sandyard('worker list', { SANDYARD_DATA_DIR: dataDir, DATABASE_URL: '' })
  assert.equal(code, 2)
  assert.match(err, /is a worker's: run this where the control plane is/)
  writeFileSync(join(dataDir, 'worker.json'), '{')
  assert.match((await sandyard('worker', { SANDYARD_DATA_DIR: dataDir })).err, /identity in .* can't be read/)
})
