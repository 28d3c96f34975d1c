import assert from 'node:assert/strict'
import { closeSync, ftruncateSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { makeFilesClient } from '../../../src/worker/channel/files-client.ts'
import type { Guest, GuestProcess } from '../../../src/worker/channel/guest.ts'
import { connectFiles, namesOf, type FsClient } from '../../support/fs-client.ts'
import { isAlive, makeLocalGuest, startFilesProcess } from '../../support/local-guest.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'

const MIB = 1024 * 1024
const LIMIT_MS = 120_000

type World = {
  readonly dir: string
  readonly guest: Guest
  /** The processes that serve files, the latest last. */
  readonly helpers: GuestProcess[]
  /** The number of pieces of files that were requested from the helpers. */
  readonly piecesAsked: () => number
  readonly connect: (onData?: (data: Buffer) => void) => FsClient
}

/** Makes a temporary folder, and a guest on this machine that records its helper processes. */
function begin(t: TestContext): World {
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-fs-'))
  const helpers: GuestProcess[] = []
  const clients: FsClient[] = []
  const local = makeLocalGuest()
  let pieces = 0
  const guest: Guest = {
    ...local,
    openFiles: async () => {
      const helper = await startFilesProcess(local)
      helpers.push(helper)
      const files = makeFilesClient(helper)
      const read = files.read.bind(files)
      files.read = (...asked) => {
        pieces += 1
        return read(...asked)
      }
      return files
    },
  }
  t.after(async () => {
    for (const client of clients) await client.agent.hangUp()
    rmSync(dir, { recursive: true, force: true })
  })
  return {
    dir,
    guest,
    helpers,
    piecesAsked: () => pieces,
    connect(onData) {
      const client = connectFiles(guest, {}, onData)
      clients.push(client)
      return client
    },
  }
}

/** A sparse file of zeros. */
function makeSparse(path: string, sizeBytes: number): void {
  const fd = openSync(path, 'w')
  ftruncateSync(fd, sizeBytes)
  closeSync(fd)
}

test('one process serves a client, from the first file message until the client is gone', async (t) => {
  const { connect, helpers } = begin(t)
  const client = connect()
  client.agent.send(1, 'core.ping', {})
  await client.agent.next(({ type }) => type === 'core.pong')
  assert.equal(helpers.length, 0)
  const stats = Array.from({ length: 20 }, () => client.run('Stat', { path: '/', follow_symlink: true }))
  await Promise.all(stats)
  const other = connect()
  await other.run('Stat', { path: '/', follow_symlink: true })
  assert.equal(helpers.length, 2)
  await client.agent.hangUp()
  assert.deepEqual(
    helpers.map(({ pid }) => isAlive(pid)),
    [false, true],
  )
})

test('a client that disconnects before its process has started leaves no process behind', async (t) => {
  const { connect, helpers } = begin(t)
  const client = connect()
  client.ask('Stat', { path: '/', follow_symlink: true })
  await client.agent.hangUp()
  assert.ok(helpers.every(({ pid }) => !isAlive(pid)))
})

test('each client has its own handles, numbered from 1, of which at most 1024 are open', async (t) => {
  const { connect } = begin(t)
  const client = connect()
  for (let batch = 0; batch < 8; batch++) {
    const opened = await Promise.all(Array.from({ length: 128 }, () => client.open('/dev/null')))
    assert.deepEqual(
      opened,
      Array.from({ length: 128 }, (_, n) => batch * 128 + n + 1),
    )
  }
  assert.match(
    await client.refusal('OpenFile', { path: '/dev/null', options: { read: true } }),
    /^open: .*\(os error 24\)/,
  )
  assert.match(await client.refusal('OpenDir', { path: '/' }), /^opendir: .*\(os error 24\)/)
  await client.run('CloseHandle', { handle: 5 })
  assert.equal(await client.refusal('FStat', { handle: 5 }), 'fstat: invalid handle: 5')
  assert.equal(await client.open('/dev/null'), 1025)
  assert.equal(await connect().refusal('FStat', { handle: 6 }), 'fstat: invalid handle: 6')
})

test('file sessions count towards the client’s limit of sessions, and a request with the id of an open session is refused', async (t) => {
  const { dir, guest } = begin(t)
  const client = connectFiles(guest, { limits: { sessions: 2 } })
  t.after(() => client.agent.hangUp())
  const handle = await client.open(join(dir, 'file'), { write: true, create: true })
  const [first] = [
    client.ask('Write', { handle, offset: 0, len: null }),
    client.ask('Write', { handle, offset: 9, len: 1 }),
  ]
  assert.match(await client.refusal('Stat', { path: '/', follow_symlink: true }), /too many open sessions/)
  client.agent.send(first, 'core.fs.request', { op: { FStat: { handle } } })
  assert.equal((await client.answer(first)).error, 'this id has a session')
})

test('sessions run in parallel, and large ones don’t delay a small operation', async (t) => {
  const { dir, connect } = begin(t)
  const client = connect()
  const contents = Array.from({ length: 6 }, () => randomBytes(3 * MIB + 1))
  const handles = await Promise.all(
    contents.map((_, n) => client.open(join(dir, String(n)), { read: true, write: true, create: true })),
  )
  const writes = handles.map((handle) => client.ask('Write', { handle, offset: 0, len: null }))
  for (let at = 0; at <= 3 * MIB; at += 100_000) {
    writes.forEach((id, n) => {
      client.send(id, contents[n]?.subarray(at, at + 100_000) ?? Buffer.alloc(0))
    })
  }
  for (const id of writes) client.send(id, Buffer.alloc(0))
  for (const id of writes) assert.equal((await client.answer(id)).ok, true)
  makeSparse(join(dir, 'large'), 512 * MIB)
  const large = await client.open(join(dir, 'large'))
  const reads = handles.map((handle) => client.ask('Read', { handle, offset: 0, len: null }))
  const endless = client.ask('Read', { handle: large, offset: 0, len: null })
  for (const [n, id] of reads.entries()) {
    assert.equal((await client.answer(id)).ok, true)
    assert.ok(contents[n]?.equals(client.received(id)))
  }
  assert.equal(namesOf(await client.run('List', { path: dir })).length, 7)
  assert.equal(
    client.agent.received.some(({ id, type }) => id === endless && type === 'core.fs.response'),
    false,
  )
})

test('a sparse file of 1 GiB is transferred in bounded memory', async (t) => {
  const { dir, connect } = begin(t)
  makeSparse(join(dir, 'sparse'), 1024 * MIB)
  let bytes = 0
  const client = connect((data) => (bytes += data.length))
  const handle = await client.open(join(dir, 'sparse'))
  const before = process.memoryUsage().rss
  let most = 0
  const timer = setInterval(() => (most = Math.max(most, process.memoryUsage().rss)), 20)
  t.after(() => {
    clearInterval(timer)
  })
  const id = client.ask('Read', { handle, offset: 0, len: null })
  assert.equal((await client.answer(id, LIMIT_MS)).ok, true)
  assert.equal(bytes, 1024 * MIB)
  assert.ok(most - before < 300 * MIB, `grew by ${String(Math.round((most - before) / MIB))} MiB`)
})

test('data in very small messages waits in bounded memory while the process that serves files is stopped', async (t) => {
  const { dir, connect, helpers } = begin(t)
  const client = connect()
  const path = join(dir, 'file')
  const handle = await client.open(path, { write: true, create: true })
  process.kill(helpers[0]?.pid ?? 0, 'SIGSTOP') // as root in the sandbox may do
  const id = client.ask('Write', { handle, offset: 0, len: null })
  const count = 60_000
  for (let n = 0; n < count; n++) client.send(id, Buffer.from('x'))
  client.send(id, Buffer.alloc(0))
  await waitUntilUnchanged(() => client.agent.stream.writableLength)
  assert.ok(client.agent.stream.writableLength > 0)
  process.kill(helpers[0]?.pid ?? 0, 'SIGCONT')
  assert.equal((await client.answer(id, LIMIT_MS)).ok, true)
  assert.equal(readFileSync(path, 'utf8'), 'x'.repeat(count))
})

test('when a client doesn’t read, its downloads wait in bounded memory, and complete later', async (t) => {
  const { dir, connect, piecesAsked } = begin(t)
  makeSparse(join(dir, 'sparse'), 16 * MIB)
  let bytes = 0
  const client = connect((data) => (bytes += data.length))
  const handle = await client.open(join(dir, 'sparse'))
  client.agent.stream.pause()
  const reads = Array.from({ length: 20 }, () => client.ask('Read', { handle, offset: 0, len: null }))
  const other = connect()
  for (let n = 0; n < 50; n++) await other.run('Stat', { path: '/', follow_symlink: true })
  assert.ok(piecesAsked() > 0 && piecesAsked() < 20, `${String(piecesAsked())} pieces of 1 MiB`)
  assert.equal(bytes, 0)
  client.agent.stream.resume()
  for (const id of reads) assert.equal((await client.answer(id, LIMIT_MS)).ok, true)
  assert.equal(bytes, 20 * 16 * MIB)
})

test('a client that disconnects during writes and reads leaves no files open, and written data stays', async (t) => {
  const { dir, connect, helpers } = begin(t)
  const client = connect()
  const path = join(dir, 'file')
  const handle = await client.open(path, { write: true, create: true })
  const id = client.ask('Write', { handle, offset: 0, len: 10 * MIB })
  client.send(id, Buffer.from('begun'))
  await waitUntil(() => readFileSync(path, 'utf8') === 'begun')
  client.ask('Read', { handle: await client.open('/dev/zero'), offset: 0, len: null })
  for (let n = 0; n < 20; n++) client.send(id, Buffer.alloc(2 * MIB))
  await client.agent.hangUp()
  assert.ok(helpers.every(({ pid }) => !isAlive(pid)))
  assert.equal(readFileSync(path, 'latin1').slice(0, 5), 'begun')
})

test('when the process is killed, pending requests fail, and a new process starts without the old handles', async (t) => {
  const { dir, connect, helpers } = begin(t)
  const client = connect()
  writeFileSync(join(dir, 'file'), 'x')
  const handle = await client.open(join(dir, 'file'))
  const id = client.ask('Read', { handle: await client.open('/dev/zero'), offset: 0, len: null })
  await waitUntil(() => client.received(id).length > 0)
  helpers[0]?.signal(9)
  assert.deepEqual(await client.answer(id), {
    ok: false,
    error: 'files: the helper process in the sandbox has ended',
    data: null,
  })
  assert.equal(await client.refusal('FStat', { handle }), `fstat: invalid handle: ${String(handle)}`)
  assert.equal((await client.read(await client.open(join(dir, 'file')))).toString(), 'x')
  assert.equal(helpers.length, 2)
})

test('a process ends when its input ends, and on SIGTERM', async (t) => {
  begin(t)
  const [first, second] = [await startFilesProcess(makeLocalGuest()), await startFilesProcess(makeLocalGuest())]
  first.stdin.end()
  second.signal(15)
  assert.deepEqual([await first.exited, await second.exited], [0, -1])
})
