import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { formatJoinToken, isJoinToken, pinOfJoinToken } from '../../src/domain/orgs/api-key.ts'
import { systemRandom } from '../../src/lib/random.ts'
import * as orgs from '../../src/store/orgs/orgs.ts'
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
  assert.match(pinOfJoinToken(plain.out.trim()) ?? '', /^[0-9a-f]{64}$/)
  const unpinned = await sandyard('worker token --unpinned')
  assert.ok(isJoinToken(unpinned.out.trim()), unpinned.err)
  assert.equal(pinOfJoinToken(unpinned.out.trim()), null)
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

test('a join token binds what its worker may claim, by flags, and refuses flags that make no sense', async () => {
  const org_id = control.caller.org_id
  const [org] = await control.deps.db.asSystem((q) => orgs.list(q, 1))
  assert.ok(org?.id === org_id)
  const bounded = await sandyard(
    `worker token --max-vcpus 4 --max-disk-mib 900 --org ${org.slug} --org ${org.slug} --json`,
  )
  assert.deepEqual(JSON.parse(bounded.out).bounds, {
    max_vcpus: 4,
    max_memory_mib: null,
    max_disk_mib: 900,
    shared_volumes: false,
    org_ids: [org_id],
  })
  for (const [line, why] of [
    ['worker token --max-vcpus 0', /--max-vcpus takes a whole number from 1/],
    ['worker token --org nobody', /no organization 'nobody'/],
    [`worker token --shared-volumes --org ${org.slug}`, /exclude each other/],
  ] as const) {
    const refused = await sandyard(line)
    assert.deepEqual([refused.code, why.test(refused.err)], [2, true], refused.err)
  }
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
    /until 20.*, when they are asked to stop\n0 runs\n/,
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
    ['worker sing', /unknown command 'worker sing'; the commands are worker token, list, drain/],
  ] as const) {
    const { code, out, err } = await sandyard(line)
    assert.notEqual(code, 0, line)
    assert.equal(out, '', line)
    assert.match(err, why)
  }
})

test('the worker command without a URL or a token fails with the name of the missing one, and an invalid URL is named', async () => {
  const dataDir = { SANDYARD_DATA_DIR: join(folder, 'new'), SANDYARD_DRIVER: 'simulated' }
  assert.match((await sandyard('worker', dataDir)).err, /--join URL \(or SANDYARD_JOIN\)/)
  assert.match((await sandyard('worker --join http://127.0.0.1:9', dataDir)).err, /a join token is needed/)
  assert.match((await sandyard('worker --join http://127.0.0.1:9 --token-stdin', dataDir)).err, /and it was empty/)
  const changed = { ...dataDir, SANDYARD_JOIN_TOKEN: 'syw_changed' }
  assert.match((await sandyard('worker --join http://127.0.0.1:9', changed)).err, /join token is incomplete/)
  assert.match((await sandyard('worker --join 127.0.0.1:9', dataDir)).err, /--join is "127.0.0.1:9"; accepted: http/)
})

test('a worker whose control plane is unreachable logs that and retries, stores its credential, and shows its token in no command line or file', async () => {
  const dataDir = join(folder, 'waits')
  const token = formatJoinToken(systemRandom.bytes(32), null)
  const args = ['worker', '--join', `http://127.0.0.1:${String(await freePort())}`, '--token', token]
  const child = spawnProgram(args, { SANDYARD_DATA_DIR: dataDir, SANDYARD_DRIVER: 'simulated' })
  try {
    let said = ''
    child.stdout?.setEncoding('utf8').on('data', (more: string) => {
      said += more
    })
    await waitUntil(() => /can't be joined: .*ECONNREFUSED.*retrying in 2 s/.test(said), 30_000)
    assert.ok(!readFileSync(`/proc/${String(child.pid)}/cmdline`, 'utf8').includes(token))
    const identity = join(dataDir, 'worker.json')
    assert.ok(existsSync(identity))
    assert.ok(!readFileSync(identity, 'utf8').includes(token))
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
  assert.match(err, /belongs to a worker: run this where the control plane is/)
  writeFileSync(join(dataDir, 'worker.json'), '{')
  assert.match((await sandyard('worker', { SANDYARD_DATA_DIR: dataDir })).err, /identity in .* can't be read/)
})
