import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { request } from 'node:http'
import { after, before, describe, test } from 'node:test'
import type { SandboxBuilder } from 'microsandbox'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { walkVolumeFiles } from '../support/volume-walk.ts'

// Volumes with the unmodified public client and real sandboxes. `call` checks every reply against our schemas and the
// published API document (test/support/contract.ts).

const MIB = 1024 * 1024
const LIMIT_MS = 30_000

describe('volumes on a real server', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  const idOf = async (name: string): Promise<string> => {
    const found = (await mustCall(server, 'list_volumes')).find((volume) => volume.name === name)
    assert.ok(found, `there is a volume ${name}`)
    return found.id
  }
  const pathHeader = (path: string): Record<string, string> => ({
    'x-msb-file-path': Buffer.from(path).toString('base64url'),
  })
  const untilGone = async (name: string): Promise<void> => {
    for (const endMs = systemClock.monotonicMs() + LIMIT_MS; ;) {
      const all = await mustCall(server, 'list_volumes')
      if (!all.some((volume) => volume.name === name)) return
      assert.ok(systemClock.monotonicMs() < endMs, `${name} is still there: ${JSON.stringify(all)}`)
      await systemClock.sleep(50)
    }
  }

  test('the command line client creates, lists and removes a volume, whose name is then free again', async () => {
    assert.equal((await runMsb(server, ['volume', 'create', 'by-hand'])).code, 0)
    const listed = await runMsb(server, ['volume', 'ls'])
    assert.equal(listed.code, 0, listed.stderr)
    assert.match(listed.stdout, /by-hand/)
    const again = await runMsb(server, ['volume', 'create', 'by-hand'])
    assert.equal(again.code, 1)
    const removed = await runMsb(server, ['volume', 'rm', 'by-hand'])
    assert.equal(removed.code, 0, removed.stderr)
    await untilGone('by-hand')
    assert.equal((await runMsb(server, ['volume', 'create', 'by-hand'])).code, 0)
  })

  test('the SDK does every file operation on a volume that no sandbox mounts', async () => {
    await walkVolumeFiles((await sdk.Volume.builder('files').create()).fs())
  })

  test('the SDK lists volumes, finds one by name and the default one, and removes one', async () => {
    await sdk.Volume.builder('listed').create()
    assert.ok((await sdk.Volume.list()).some(({ name }) => name === 'listed'))
    assert.equal((await sdk.Volume.get('listed')).name, 'listed')
    const host = await sdk.Volume.getDefault()
    assert.ok(host.isDefault)
    await host.fs().write('on-default.txt', 'x')
    assert.equal(await host.fs().readToString('on-default.txt'), 'x')
    await sdk.Volume.remove('listed')
    await untilGone('listed')
  })

  test('50 MiB stream into a volume and out of it unchanged, with and without a known length', async () => {
    const fs = (await sdk.Volume.builder('large').create()).fs()
    const part = randomBytes(MIB)
    const hash = createHash('sha256')
    const sink = await fs.writeStream('streamed')
    for (let count = 0; count < 50; count++) {
      part.writeUInt32LE(count)
      hash.update(part)
      await sink.write(part)
    }
    await sink.close()
    const expected = hash.digest('hex')
    const read = createHash('sha256')
    for await (const piece of await fs.readStream('streamed')) read.update(piece)
    assert.equal(read.digest('hex'), expected)
    const whole = randomBytes(50 * MIB)
    await fs.write('whole', whole)
    assert.ok(Buffer.from(await fs.read('whole')).equals(whole))
  })

  test('a sandbox that mounts a volume sees its files, and the routes see what it writes', async () => {
    const fs = (await sdk.Volume.builder('shared').create()).fs()
    await fs.write('in.txt', 'from outside')
    // The builder's methods return the builder, but their declared return type is another one.
    const configure = (builder: SandboxBuilder): SandboxBuilder => {
      builder.volume('/data', (mount) => mount.named('shared'))
      return builder
    }
    const box = await configure(sdk.Sandbox.builder('mounting').image(DEMO_IMAGE)).create()
    const said = await box.shell('cat /data/in.txt; echo inside > /data/out.txt')
    assert.equal(said.stdout(), 'from outside', said.stderr())
    assert.equal(await fs.readToString('out.txt'), 'inside\n')
    const refused = await call(server, 'delete_volume', { params: { id: await idOf('shared') } })
    assert.equal(refused.status, 409)
    assert.ok(refused.isRefusal && refused.body.error.code === 'volume_in_use')
    await sdk.Sandbox.remove('mounting')
  })

  test('a sandbox that binds a folder of the default volume shares it with the routes', async () => {
    const fs = (await sdk.Volume.getDefault()).fs()
    await fs.write('work/in.txt', 'bound')
    const configure = (builder: SandboxBuilder): SandboxBuilder => {
      builder.volume('/work', (mount) => mount.bind('/work'))
      return builder
    }
    const box = await configure(sdk.Sandbox.builder('binding').image(DEMO_IMAGE)).create()
    const said = await box.shell('cat /work/in.txt; echo out > /work/out.txt')
    assert.equal(said.stdout(), 'bound', said.stderr())
    assert.equal(await fs.readToString('work/out.txt'), 'out\n')
    await sdk.Sandbox.remove('binding')
  })

  test('an interrupted upload leaves the old file and nothing else', async () => {
    const fs = (await sdk.Volume.builder('broken-off').create()).fs()
    await fs.write('kept', 'old')
    const params = { id: await idOf('broken-off') }
    const upload = request(`${server.url}/v1/volumes/${params.id}/files/content`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${server.key}`, ...pathHeader('kept') },
    })
    upload.on('error', () => upload.destroy())
    await new Promise((resolve) => upload.write(randomBytes(MIB), resolve))
    upload.destroy()
    await fs.write('after', 'x') // once this is answered, the worker has noticed that the first upload was interrupted
    await fs.remove('after')
    assert.equal(await fs.readToString('kept'), 'old')
    assert.deepEqual((await fs.list('/')).map(({ path }) => path), ['/kept']) // prettier-ignore
  })

  test('a cap is enforced while a sandbox writes, and the sandbox can write more once the cap is raised', async (t) => {
    const made = await call(server, 'create_volume', { body: { name: 'capped', capacity_gib: 1 } })
    if (made.isRefusal) {
      t.skip(`no cap can be enforced on this machine: ${made.body.error.message}`)
      return
    }
    const { id } = made.body
    const configure = (builder: SandboxBuilder): SandboxBuilder => {
      builder.volume('/data', (mount) => mount.named('capped'))
      return builder
    }
    const box = await configure(sdk.Sandbox.builder('filling').image(DEMO_IMAGE)).create()
    const fill = 'dd if=/dev/zero of=/data/fill bs=1M count=1100 2>&1 | tail -1; wc -c < /data/fill'
    const full = await box.shell(fill)
    const written = Number(full.stdout().trim().split('\n').at(-1))
    assert.ok(written > 900 * MIB && written <= 1024 * MIB, `${full.stdout()} ${full.stderr()}`)
    await mustCall(server, 'update_volume', { params: { id }, body: { capacity_gib: 2 } })
    for (const endMs = systemClock.monotonicMs() + LIMIT_MS; ;) {
      const more = await box.shell('dd if=/dev/zero of=/data/more bs=1M count=100 2>/dev/null && echo fits')
      if (more.stdout().includes('fits')) break
      assert.ok(systemClock.monotonicMs() < endMs, 'the new cap never came into force')
    }
    await sdk.Sandbox.remove('filling')
  })

  test('every reply of the volume routes fits our schemas and the published API document', async () => {
    const made = await mustCall(server, 'create_volume', { body: { name: 'direct', labels: { team: 'ml' } } })
    const params = { id: made.id }
    assert.deepEqual(made.labels, { team: 'ml' })
    assert.equal((await mustCall(server, 'list_volumes'))[0]?.kind, 'host')
    const host = await mustCall(server, 'get_default_volume')
    assert.deepEqual((await mustCall(server, 'get_volume', { params })).id, made.id)
    const updated = await mustCall(server, 'update_volume', { params, body: { capacity_gib: null, labels: {} } })
    assert.deepEqual([updated.labels, updated.capacity_bytes], [{}, null])
    await mustCall(server, 'write_volume_file', { params, headers: pathHeader('a'), body: Buffer.from('abc') })
    await mustCall(server, 'make_volume_folder', { params, body: { path: 'd' } })
    await mustCall(server, 'copy_volume_file', { params, body: { from: 'a', to: 'd/b' } })
    await mustCall(server, 'rename_volume_file', { params, body: { from: 'd/b', to: 'd/c' } })
    for (const id of ['list_volume_files', 'stat_volume_file', 'volume_file_exists'] as const)
      await mustCall(server, id, { params, headers: pathHeader('d') })
    await mustCall(server, 'remove_volume_file', {
      params,
      headers: { ...pathHeader('d'), 'x-msb-file-recursive': 'true' },
    })
    const onHost = { params: { id: 'default' }, headers: pathHeader('/') }
    await mustCall(server, 'list_volume_files', onHost)

    const refusals = [
      [await call(server, 'delete_volume', { params: { id: host.id } }), 409, 'invalid_request'],
      [await call(server, 'update_volume', { params: { id: host.id }, body: { capacity_gib: 1 } }), 409, 'invalid_request'],
      [await call(server, 'create_volume', { body: { name: 'direct' } }), 409, 'volume_already_exists'],
      [await call(server, 'create_volume', { body: { name: 'Bad--Name' } }), 400, 'invalid_request'],
      [await call(server, 'create_volume', { body: { name: 'x', labels: { 'sandbox.x': '1' } } }), 400, 'invalid_request'],
      [await call(server, 'create_volume', { body: { name: 'x', capacity_gib: 0 } }), 400, 'invalid_request'],
      [await call(server, 'delete_volume', { params: { id: made.id.replace(/^./, 'f') } }), 404, 'volume_not_found'],
      [await call(server, 'get_volume', { params: { id: made.id.replace(/^./, 'f') } }), 404, 'volume_not_found'],
      [await call(server, 'stat_volume_file', { params, headers: pathHeader('none') }), 404, 'volume_file_not_found'],
      [await call(server, 'stat_volume_file', { params, headers: pathHeader('../x') }), 400, 'invalid_volume_path'],
      [await call(server, 'stat_volume_file', { params, headers: { 'x-msb-file-path': 'a+=' } }), 400, 'invalid_volume_path'],
      [await call(server, 'stat_volume_file', { params }), 400, 'invalid_volume_path'],
    ] as const // prettier-ignore
    for (const [answer, status, code] of refusals) {
      assert.equal(answer.status, status, answer.text)
      assert.ok(answer.isRefusal && answer.body.error.code === code, answer.text)
    }
    const renamed = await call(server, 'rename_volume_file', { params, body: { from: 'none', to: 'd' } })
    const details = { field: 'from, to', seen: 'none, d', accepted: 'a file or folder that exists' }
    assert.deepEqual(renamed.isRefusal && renamed.body.error.details, details, renamed.text)
    await mustCall(server, 'delete_volume', { params })
    const repeated = await call(server, 'delete_volume', { params })
    assert.ok(repeated.status === 200 || repeated.status === 404, repeated.text)
    await untilGone('direct')
  })
})
