import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { truncate } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { duplexPair, PassThrough, Readable, type Duplex } from 'node:stream'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { promisify } from 'node:util'
import {
  CONTENT_UPGRADE,
  encodeVolumePath,
  VOLUME_PATH_HEADER,
  type VolumeFiles,
} from '../../../src/contract/volumes/volume-protocol.ts'
import { makeVolumeClient } from '../../../src/control/volumes/volume-client.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { nextTurn } from '../../../src/lib/turns/next-turn.ts'
import { serveVolume } from '../../../src/worker/volumes/serve-volume.ts'
import { openTargets } from '../../support/open-files.ts'
import { waitUntil } from '../../support/wait.ts'
import { contentFrom, makeVolumeFolder, namesBeneath, refusal, textOf, unfinishedIn } from './volume-folder.ts'

const log = makeLog('silent')

type World = {
  readonly client: VolumeFiles
  readonly open: () => Promise<Duplex>
  readonly streams: readonly Duplex[]
  readonly changes: () => number
  /** The number of streams that are still being served. */
  readonly served: () => number
}

function serveAll(files: VolumeFiles, idleMs?: number): World {
  const streams: Duplex[] = []
  let [changes, served] = [0, 0]
  const open = (): Promise<Duplex> => {
    const [near, far] = duplexPair()
    streams.push(near, far)
    served += 1
    const options = { log, onChanged: () => void (changes += 1), ...(idleMs === undefined ? {} : { idleMs }) }
    void serveVolume(far, files, options).finally(() => (served -= 1))
    return Promise.resolve(near)
  }
  return { client: makeVolumeClient(open), open, streams, changes: () => changes, served: () => served }
}

async function assertAllEnded({ streams, served }: World): Promise<void> {
  await waitUntil(() => served() === 0 && streams.every((stream) => stream.destroyed))
}

test('every operation does the same over a stream as on the folder, and leaves no stream open', async () => {
  await using volume = await makeVolumeFolder()
  const world = serveAll(volume.files)
  const { client } = world
  assert.deepEqual(await client.write('/a/grüße\n.txt', contentFrom('hello')), { sizeBytes: 5 })
  await client.mkdir('/b')
  await client.copy('/a', '/b/c')
  await client.rename('/a', '/d')
  assert.equal(world.changes(), 4)
  assert.deepEqual(await client.list('/'), await volume.files.list('/'))
  assert.deepEqual(await client.stat('/b/c/grüße\n.txt'), await volume.files.stat('/b/c/grüße\n.txt'))
  assert.equal(await client.exists('/d'), true)
  assert.equal(await client.exists('/a'), false)
  assert.equal(await textOf(client, '/d/grüße\n.txt'), 'hello')
  assert.equal(world.changes(), 4)
  await client.remove('/b', { isRecursive: true })
  assert.deepEqual(namesBeneath(volume.root), ['d', 'd/grüße\n.txt'])
  await assert.rejects(client.remove('/d', { isRecursive: false }), refusal('volume_file_conflict'))
  await assert.rejects(client.stat('/none'), refusal('volume_file_not_found'))
  await assert.rejects(client.read('/none'), refusal('volume_file_not_found'))
  await assertAllEnded(world)
  const before = world.streams.length
  await assert.rejects(client.read('/../x'), refusal('invalid_volume_path'))
  await assert.rejects(client.copy('/d', '//x'), refusal('invalid_volume_path'))
  assert.equal(world.streams.length, before, 'an invalid request opens no stream')
})

test('content that comes in small pieces pauses now and then, and arrives whole', async () => {
  await using volume = await makeVolumeFolder()
  const { client } = serveAll(volume.files)
  let taken = 0
  function* pieces(): Generator<Buffer> {
    for (; taken < 2_000; taken += 1) yield Buffer.alloc(200, String(taken % 10))
  }
  const written = client.write('/slow', Readable.from(pieces(), { objectMode: false }))
  await waitUntil(() => taken > 200)
  for (let turn = 0; turn < 100; turn += 1) await nextTurn()
  const takenSoon = taken
  assert.deepEqual(await written, { sizeBytes: 400_000 })
  assert.ok(takenSoon < 2_000, String(takenSoon))
  const digits = Array.from('0123456789', (digit) => digit.repeat(200)).join('')
  assert.equal(await textOf(client, '/slow'), digits.repeat(200))
})

test('a client learns of an unexpected error only that there was one', async () => {
  await using volume = await makeVolumeFolder()
  const fault = (): Promise<never> => Promise.reject(new Error(`EIO: ${volume.root}`))
  const world = serveAll({ ...volume.files, list: fault, read: fault, write: fault })
  const { client } = world
  for (const asked of [client.list('/'), client.read('/x'), client.write('/x', endlessContent())])
    await assert.rejects(asked, (error) => error instanceof Error && !String(error.stack).includes(volume.root))
  await assertAllEnded(world)
})

test('a request outside the protocol is refused', async () => {
  await using volume = await makeVolumeFolder()
  const world = serveAll(volume.files)
  const path = encodeVolumePath('/x')
  const asked = async (method: string, url: string, headers: Record<string, string>): Promise<number | undefined> => {
    const stream = await world.open()
    const { promise, resolve, reject } = Promise.withResolvers<number | undefined>()
    request({ method, path: url, headers, createConnection: () => stream })
      .on('response', (response) => {
        resolve(response.statusCode)
        stream.destroy()
      })
      .on('error', reject)
      .end()
    return await promise
  }
  for (const [method, url] of [
    ['GET', '/'],
    ['POST', '/list'],
    ['GET', '/list/'],
    ['GET', '/list?x'],
    ['GET', '/../list'],
    ['PATCH', '/content'],
    ['GET', '/constructor'],
    ['PUT', '/content'], // without the upgrade
  ] as const)
    assert.equal(await asked(method, url, { [VOLUME_PATH_HEADER]: path }), 404, `${method} ${url}`)
  for (const [method, url, upgrade] of [
    ['GET', '/content', CONTENT_UPGRADE],
    ['PUT', '/contents', CONTENT_UPGRADE],
    ['PUT', '/content', 'h2c'],
  ] as const) {
    const headers = { [VOLUME_PATH_HEADER]: path, connection: 'upgrade', upgrade }
    assert.equal(await asked(method, url, headers), 404, `${method} ${url} with ${upgrade}`)
  }
  const bad: readonly Record<string, string>[] = [
    {},
    ...['=', '/x', `${path}=`, '_w', '7aCA'].map((header) => ({ [VOLUME_PATH_HEADER]: header })),
  ]
  for (const headers of bad) assert.equal(await asked('GET', '/list', headers), 422, JSON.stringify(headers))
  for (const recursive of [{}, { 'x-msb-file-recursive': 'yes' }, { 'x-msb-file-recursive': '' }])
    assert.equal(await asked('DELETE', '/', { [VOLUME_PATH_HEADER]: path, ...recursive }), 422)
  assert.equal(await asked('POST', '/copy', { [VOLUME_PATH_HEADER]: path }), 422)
  await assertAllEnded(world)
})

test('a refused upload is answered at once, even while its sender still sends', { timeout: 20_000 }, async () => {
  await using volume = await makeVolumeFolder()
  await volume.files.mkdir('/folder')
  const world = serveAll(volume.files)
  const endless = endlessContent()
  await assert.rejects(world.client.write('/folder', endless), refusal('volume_file_conflict'))
  assert.equal(endless.destroyed, false)
  endless.destroy()
  await assertAllEnded(world)
})

test('a cancelled upload leaves the old file and nothing else', { timeout: 20_000 }, async () => {
  await using volume = await makeVolumeFolder()
  await volume.files.write('/file', contentFrom('old'))
  const world = serveAll(volume.files)
  for (const path of ['/file', '/new/file']) {
    const content = new PassThrough()
    const writing = world.client.write(path, content)
    content.write(Buffer.alloc(1024 * 1024))
    await waitUntil(() => unfinishedIn(volume.root).length === 1)
    content.destroy(new Error('the client left'))
    await assert.rejects(writing, /failed/)
    await assertAllEnded(world)
  }
  const content = new PassThrough()
  const writing = world.client.write('/file', content)
  content.write(Buffer.alloc(1024 * 1024))
  await waitUntil(() => unfinishedIn(volume.root).length === 1)
  for (const stream of world.streams) stream.destroy() // the connection breaks
  await assert.rejects(writing, /failed|ended/)
  await assertAllEnded(world)
  assert.deepEqual(namesBeneath(volume.root), ['file'])
  assert.equal(await textOf(volume.files, '/file'), 'old')
})

test('a reader that stops half-way closes the stream and the file', { timeout: 20_000 }, async () => {
  await using volume = await makeVolumeFolder()
  await volume.files.write('/file', Readable.from([Buffer.alloc(8 * 1024 * 1024)], { objectMode: false }))
  const world = serveAll(volume.files)
  for (let round = 0; round < 10; round += 1) {
    const { content } = await world.client.read('/file')
    for await (const _ of content) break
    await waitUntil(() => content.destroyed)
  }
  const unread = await world.client.read('/file')
  unread.content.destroy()
  await assertAllEnded(world)
  assert.deepEqual(openIn(volume.root), [])
})

test(
  'a file that becomes shorter while it is sent breaks the reply and closes the file',
  { timeout: 20_000 },
  async () => {
    await using volume = await makeVolumeFolder()
    await volume.files.write('/file', Readable.from([Buffer.alloc(8 * 1024 * 1024)], { objectMode: false }))
    const world = serveAll(volume.files)
    const { sizeBytes, content } = await world.client.read('/file')
    assert.equal(sizeBytes, 8 * 1024 * 1024)
    await truncate(join(volume.root, 'file'), 1024 * 1024)
    await assert.rejects(text(content))
    await assertAllEnded(world)
    assert.deepEqual(openIn(volume.root), [])
  },
)

test('an idle stream is destroyed, but not while an operation is running', { timeout: 20_000 }, async () => {
  await using volume = await makeVolumeFolder()
  await volume.files.write('/file', Readable.from([Buffer.alloc(8 * 1024 * 1024)], { objectMode: false }))
  const { promise: released, resolve: release } = Promise.withResolvers<void>()
  const world = serveAll({ ...volume.files, copy: () => released }, 1_000)
  const copying = world.client.copy('/file', '/copy')
  await world.open() // an idle stream: no request is sent
  const stalled = world.client.write('/stalled', new PassThrough())
  const reader = await world.client.read('/file') // another idle stream: the content is not read
  await assert.rejects(stalled, /failed|ended/)
  await waitUntil(() => world.served() === 1)
  await assert.rejects(text(reader.content))
  release()
  await copying
  await assertAllEnded(world)
  assert.deepEqual(namesBeneath(volume.root), ['file'])
})

test('files far larger than the memory can be uploaded and downloaded', { timeout: 60_000 }, async () => {
  await using volume = await makeVolumeFolder()
  const child = new URL('../../support/volume-stream-process.ts', import.meta.url).pathname
  const args = ['--max-old-space-size=48', child, volume.root, String(64 * 1024 * 1024)]
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 50_000 })
  const { mostMib, isSame } = JSON.parse(stdout) as { mostMib: number; isSame: boolean }
  assert.equal(isSame, true)
  assert.ok(mostMib < 64, `${mostMib} MiB of buffers were held at once`)
})

function openIn(folder: string): readonly string[] {
  return openTargets().filter((target) => target.startsWith(folder))
}

function endlessContent(): Readable {
  return new Readable({
    read() {
      this.push(Buffer.alloc(64 * 1024))
    },
  })
}
