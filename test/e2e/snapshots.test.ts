import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { call, mustCall, type SandboxBody, type SnapshotOperationBody } from '../support/api.ts'
import { capturedBodies } from '../support/contract.ts'
import { runMsb } from '../support/msb.ts'
import { runProgram } from '../support/program.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Snapshots and forks of real sandboxes.

const LIMIT_MS = 30_000

describe('snapshots of containers', { skip: whyNoServer() }, () => {
  let server: RealServer
  let source: SandboxBody
  before(async () => {
    server = await startServer({})
    source = await running({
      name: 'source',
      image: 'localhost/demo',
      resources: { memory_mib: 128, disk_size_mib: 256 },
    })
    await inside(
      'source',
      'echo first >/root/kept; mkdir /srv/data; head -c 5000000 /dev/urandom >/srv/data/random; rm /etc/passwd',
    )
  })
  after(() => server.close())

  test('a snapshot of a running sandbox has what was written until then, and its digest is that of its manifest', async () => {
    const hash = await inside('source', 'sha256sum /srv/data/random')
    const { status, result } = await take({
      name: 'nightly',
      labels: { team: 'ml', '10': 'b', '9': 'a' },
      record_integrity: true,
    })
    assert.equal(status, 'succeeded')
    assert.equal(result?.name, 'nightly')
    const found = await call(server, 'get_snapshot_by_name', { params: { name: 'nightly' } })
    const [, manifest = ''] = /"manifest":(\{.*\}),"labels"/.exec(found.text) ?? []
    assert.equal(result.digest, `sha256:${createHash('sha256').update(manifest).digest('hex')}`)
    assert.match(result.manifest.state.upper.integrity?.digest ?? '', /^sha256:[0-9a-f]{64}$/)
    assert.ok(result.size_bytes > 5_000_000 && result.size_bytes < 100_000_000, String(result.size_bytes))
    await inside('source', 'echo second >/root/kept; rm -r /srv/data')
    const { slug } = await running(restoreBody('restored', 'nightly'))
    assert.equal(await inside('restored', 'cat /root/kept; sha256sum /srv/data/random; ls /etc/passwd 2>/dev/null; hostname'), `first\n${hash}${slug}\n`) // prettier-ignore
    await inside('restored', 'echo other >/root/kept')
    assert.equal(await inside('source', 'cat /root/kept'), 'second\n')
    await inside('source', 'head -c 5000000 /dev/zero >/root/zeros')
  })

  test('a name is taken while its snapshot lives; with force a new snapshot replaces it', async () => {
    const before = await mustCall(server, 'get_snapshot_by_name', { params: { name: 'nightly' } })
    const again = await call(server, 'create_snapshot', {
      body: { kind: 'disk', sandbox_id: source.id, name: 'nightly' },
    })
    assert.ok(again.isRefusal)
    assert.equal(again.body.error.code, 'snapshot_name_already_exists')
    const { result } = await take({ name: 'nightly', force: true })
    assert.notEqual(result?.location.id, before.location.id)
    const { data } = await mustCall(server, 'list_snapshots', {})
    assert.deepEqual(data.map(({ location }) => location.id), [result?.location.id]) // prettier-ignore
  })

  test('a snapshot may go while sandboxes from it live on, and one that waits for its first start still starts', async () => {
    const { result } = await take({ name: 'short-lived' })
    const waiting = await mustCall(server, 'create_sandbox', {
      body: restoreBody('waiting', result?.location.id ?? ''),
    })
    await mustCall(server, 'delete_snapshot', { params: { snapshot_id: result?.location.id ?? '' } })
    const gone = await call(server, 'get_snapshot', { params: { snapshot_id: result?.location.id ?? '' } })
    assert.ok(gone.isRefusal)
    assert.equal(gone.body.error.code, 'snapshot_not_found')
    const refused = await call(server, 'create_sandbox', { body: restoreBody('none', 'short-lived') })
    assert.equal(refused.status, 404)
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: waiting.id }, query: { wait_for: 'running' } })
    assert.equal(await inside('waiting', 'cat /root/kept'), 'second\n')
  })

  test('ten forks of a running sandbox run with its files, and none sees what another writes', async () => {
    const forks = await fork(source.id, { count: 10, name: 'copy' })
    assert.deepEqual(forks.map(({ name }) => name), Array.from({ length: 10 }, (_, n) => `copy-${String(n + 1)}`)) // prettier-ignore
    await Promise.all(forks.map(({ id }) => until(id, 'running')))
    for (const { name } of forks) await inside(name, `echo ${name} >/root/own; sync`)
    for (const { name } of forks)
      assert.equal(await inside(name, 'cat /root/kept /root/own; ls /root'), `second\n${name}\nkept\nown\nzeros\n`)
    assert.equal(await inside('source', 'ls /root'), 'kept\nzeros\n')
    for (const { id } of forks) await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
  })

  test('a sandbox that was never started has no disk to copy; a stopped one has, and its fork is not started', async () => {
    const idle = await mustCall(server, 'create_sandbox', { body: { name: 'idle', image: 'localhost/demo' } })
    const refused = await call(server, 'create_snapshot', { body: { kind: 'disk', sandbox_id: idle.id, name: 'none' } })
    assert.ok(refused.isRefusal)
    assert.equal(refused.body.error.code, 'invalid_state_transition')
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: source.id } })
    await until(source.id, 'stopped')
    const [copy] = await fork(source.id, { name: 'of-stopped' })
    assert.equal(copy?.status, 'created')
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: copy.id }, query: { wait_for: 'running' } })
    assert.equal(await inside('of-stopped', 'cat /root/kept'), 'second\n')
  })

  test('an exported snapshot is an image for any tool, and imported it is a snapshot again, with its disk', async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'sandyard-export-'))
    t.after(() => {
      rmSync(folder, { recursive: true })
    })
    const env = { SANDYARD_DATA_DIR: server.dataDir }
    const sandyard = async (line: string): Promise<string> => {
      const { code, output } = await runProgram(line.split(' '), env)
      assert.equal(code, 0, `${line}: ${output}`)
      return output
    }
    const layout = join(folder, 'layout')
    assert.equal(await sandyard(`snapshot export nightly ${layout}`), `${layout}\n`)
    assert.deepEqual(readdirSync(folder), ['layout'])
    await sandyard(`image load ${layout} localhost/exported`)
    await running({ name: 'from-image', image: 'localhost/exported', resources: { memory_mib: 128 } })
    const expected = 'second\n'
    assert.equal(await inside('from-image', 'cat /root/kept; ls /etc/passwd 2>/dev/null || true'), expected)
    assert.match(await sandyard(`snapshot import ${layout} moved`), /^moved [0-9a-f-]{36}\n$/)
    assert.match(await sandyard('snapshot list'), /^moved\t\d+ MiB\t256 MiB\tsource\t/m)
    const imported = await running(restoreBody('from-import', 'moved'))
    assert.equal(await inside('from-import', 'cat /root/kept; ls /etc/passwd 2>/dev/null || true'), expected)
    assert.doesNotMatch(await sandyard('image list'), /imported-snapshot.*latest/)
    const { code, output } = await runProgram(['snapshot', 'import', layout, 'moved'], env)
    assert.equal(code, 1)
    assert.match(output, /the organization has a snapshot of this name already; `sandyard snapshot list` shows all/)
    await mustCall(server, 'delete_snapshot_by_name', { params: { name: 'moved' } })
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: imported.id } })
    await until(imported.id, 'stopped')
    await mustCall(server, 'start_sandbox', { params: { sandbox_id: imported.id }, query: { wait_for: 'running' } })
    assert.equal(await inside('from-import', 'cat /root/kept'), 'second\n')
  })

  test('fields that a snapshot has already are refused beside it', async () => {
    const more = { reference: 'localhost/demo', patches: [{ type: 'mkdir', path: '/x' }], image: 'localhost/demo' }
    for (const [field, value] of Object.entries(more)) {
      const refused = await call(server, 'create_sandbox', { body: { ...restoreBody('x', 'nightly'), [field]: value } })
      assert.ok(refused.isRefusal && refused.body.error.message.includes(field), refused.text)
    }
  })

  async function take(more: object): Promise<SnapshotOperationBody> {
    const body = { kind: 'disk', sandbox_id: source.id, ...more }
    const { id } = await mustCall(server, 'create_snapshot', { body })
    return await waitUntil(async () => {
      const operation = await mustCall(server, 'get_snapshot_operation', { params: { operation_id: id } })
      assert.notEqual(operation.status, 'failed', operation.error?.message)
      return operation.status === 'succeeded' && operation
    }, LIMIT_MS)
  }

  function restoreBody(name: string, id: string): object {
    const { body } = capturedBodies().find((one) => one.name === 'v0.7.11/cli-from-snapshot') ?? assert.fail()
    return { ...body, name, disk_snapshot_ref: { type: 'managed', id } }
  }

  async function fork(sandbox_id: string, body: object): Promise<readonly SandboxBody[]> {
    return (await mustCall(server, 'fork_sandbox', { params: { sandbox_id }, body })).data
  }

  async function running(body: object): Promise<SandboxBody> {
    const made = await mustCall(server, 'create_sandbox', { query: { start: 'true' }, body })
    return await until(made.id, 'running')
  }

  async function until(sandbox_id: string, status: SandboxBody['status']): Promise<SandboxBody> {
    return await waitUntil(async () => {
      const sandbox = await mustCall(server, 'get_sandbox', { params: { sandbox_id } })
      assert.ok(status === 'failed' || sandbox.status !== 'failed', sandbox.last_failure_message ?? '')
      return sandbox.status === status && sandbox
    }, LIMIT_MS)
  }

  async function inside(name: string, script: string): Promise<string> {
    const { stdout, stderr, code } = await runMsb(server, ['exec', name, '--', 'sh', '-c', script])
    assert.ok(code === 0 || stderr === '', stderr)
    return stdout
  }
})
