import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { duplexPair, Readable, type Duplex } from 'node:stream'
import { buffer, text } from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { after, before, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { asMap, decodeCbor } from '../../src/channel/cbor.ts'
import { decodeEnvelope, encodeData, encodeMessage } from '../../src/channel/envelope.ts'
import { makeFrameReader } from '../../src/channel/frame.ts'
import { startChannelClient } from '../../src/channel-client/channel-client.ts'
import type { ExecRequest } from '../../src/channel-client/exec.ts'
import { FileFailure } from '../../src/channel-client/files.ts'
import { ConnectFailure } from '../../src/channel-client/tcp.ts'
import { ChannelLost } from '../../src/channel-client/connection.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import { serveClient, type ServedClient } from '../support/channel-clients.ts'
import { freePort } from '../support/free-port.ts'
import { makeLocalGuest } from '../support/local-guest.ts'
import { countPerTurn } from '../support/most-per-turn.ts'
import { startTcpServer } from '../support/tcp-server.ts'
import { waitUntil, waitUntilUnchanged } from '../support/wait.ts'

// The control plane's own client of a served channel: commands, connections and files, many at a time.

const MIB = 1024 * 1024
const shell = (script: string): ExecRequest => ({ cmd: 'sh', args: ['-c', script], env: [], cwd: '/', user: null, tty: null }) // prettier-ignore

let served: ServedClient
let folder = ''
before(async () => {
  served = await serveClient(makeLocalGuest())
  folder = await mkdtemp(join(tmpdir(), 'sandyard-channel-client-'))
})
after(async () => {
  served.client.close()
  assert.equal(await served.client.closed, 'client_done')
  await served.over
  await rm(folder, { recursive: true })
})

test('a command gets its input and environment, and its outputs and exit code come back apart', async () => {
  const session = served.client.exec({ ...shell('cat; echo $A >&2; exit 3'), env: ['A=b'] })
  session.stdin.end('in')
  const outputs = await Promise.all([text(session.stdout), text(session.stderr), session.exit])
  assert.deepEqual(outputs, ['in', 'b\n', { kind: 'exited', code: 3 }])
})

test('a signal ends a command, and a command that does not exist fails with a reason', async () => {
  const session = served.client.exec(shell('echo up; sleep 60'))
  await new Promise((resolve) => session.stdout.once('data', resolve))
  session.signal(15)
  assert.deepEqual(await session.exit, { kind: 'signaled', signal: 15 })
  const missing = await served.client.exec({ ...shell(''), cmd: 'no-such-program' }).exit
  assert.equal(missing.kind === 'failed' && missing.reason, 'not_found')
})

test('64 MiB pass through a command unchanged in both directions', async () => {
  const data = randomBytes(64 * MIB)
  const session = served.client.exec(shell('cat'))
  const [echoed] = await Promise.all([buffer(session.stdout), pipeline(Readable.from(pieces(data)), session.stdin)])
  assert.equal(hash(echoed), hash(data))
  assert.deepEqual(await session.exit, { kind: 'exited', code: 0 })
})

test('output that nobody reads stops its writer, and reading it on loses nothing', async () => {
  const own = await serveClient(makeLocalGuest())
  const session = own.client.exec(shell(`head -c ${String(64 * MIB)} /dev/zero`))
  await waitUntil(() => session.stdout.readableLength > MIB)
  await waitUntilUnchanged(() => session.stdout.readableLength)
  assert.ok(session.stdout.readableLength < 8 * MIB, String(session.stdout.readableLength))
  assert.equal((await buffer(session.stdout)).length, 64 * MIB)
  own.client.close()
  await own.over
})

test('a hundred commands at a time over one channel get each their own output', async () => {
  const outputs = await Promise.all(
    Array.from({ length: 100 }, (_, at) => text(served.client.exec(shell(`echo ${String(at)}`)).stdout)),
  )
  assert.deepEqual(
    outputs,
    Array.from({ length: 100 }, (_, at) => `${String(at)}\n`),
  )
})

test('each direction of a connection ends by itself, after its data', async () => {
  const server = await startTcpServer()
  const stream = await served.client.connect(server.port)
  stream.end('question')
  const socket = await server.accept()
  assert.equal(await text(socket), 'question')
  socket.end('answer')
  assert.equal(await text(stream), 'answer')
  await closed(stream)
  await server.close()
})

test('a reader of a connection that stops stops the sender, in both directions', async () => {
  const server = await startTcpServer()
  const own = await serveClient(makeLocalGuest())
  const stream = await own.client.connect(server.port, '127.0.0.1')
  const socket = await server.accept()
  const data = randomBytes(64 * MIB)
  socket.end(data)
  await waitUntil(() => stream.readableLength > MIB)
  await waitUntilUnchanged(() => stream.readableLength)
  assert.ok(socket.writableLength > 0, 'the sender was not stopped')
  assert.equal(hash(await buffer(stream)), hash(data))
  const up = pipeline(Readable.from(pieces(data)), stream)
  await waitUntilUnchanged(() => stream.writableLength)
  assert.ok(!stream.writableFinished, 'all data was sent, though nobody read it')
  const [received] = await Promise.all([buffer(socket), up])
  assert.equal(hash(received), hash(data))
  own.client.close()
  await Promise.all([own.over, server.close()])
})

test('a port where nothing listens is told apart from other failures', async () => {
  const isRefused = (kind: string) => (error: unknown) => error instanceof ConnectFailure && error.kind === kind
  await assert.rejects(served.client.connect(await freePort()), isRefused('refused'))
  await assert.rejects(served.client.connect(1, 'no-such-host.invalid'), isRefused('other'))
})

test('a connection that the other end resets fails, and one that is destroyed is gone in the sandbox', async () => {
  const server = await startTcpServer()
  const reset = await served.client.connect(server.port)
  const failure = new Promise((resolve) => reset.once('error', resolve))
  ;(await server.accept()).resetAndDestroy()
  assert.ok((await failure) instanceof ConnectFailure)
  const dropped = await served.client.connect(server.port)
  const socket = await server.accept()
  dropped.destroy()
  await waitUntil(() => socket.destroyed || socket.readableEnded || (socket.resume(), undefined))
  await server.close()
})

test('the files of a sandbox are created, read in parts, listed, changed, renamed and removed', async () => {
  const { files } = served.client
  const path = join(folder, 'a')
  const flags = {
    read: true,
    write: true,
    append: false,
    create: true,
    truncate: true,
    create_new: false,
    mode: 0o640,
    user: null,
  }
  const handle = await files.open(path, flags)
  await files.write(handle, 0, Buffer.from('hello world'))
  assert.equal((await files.read(handle, 6, 100)).toString(), 'world')
  assert.equal((await files.read(handle, 11, 100)).length, 0)
  assert.equal((await files.statHandle(handle)).size, 11)
  await files.close(handle)
  const none = { mode: null, uid: null, gid: null, size: null, atime: null, mtime: null }
  await files.setStat(path, { ...none, mode: 0o600, atime: 1, mtime: 2 }, { follow: true })
  const { mode, mtime } = await files.stat(path, { follow: true })
  assert.deepEqual([mode, mtime], [0o100600, 2])
  await files.mkdir(join(folder, 'b'), 0o700, null)
  await files.rename(path, join(folder, 'b/c'))
  await files.symlink('b/c', join(folder, 'link'), null)
  assert.equal(await files.readLink(join(folder, 'link')), 'b/c')
  assert.equal(await files.realPath(join(folder, 'link')), await files.realPath(join(folder, 'b/c')))
  assert.equal((await files.stat(join(folder, 'link'), { follow: false })).mode & 0o170000, 0o120000)
  const open = await files.openFolder(folder)
  const names = (await files.readFolder(open)).map((entry) => entry.path).toSorted()
  assert.deepEqual(names, [join(folder, 'b'), join(folder, 'link')])
  assert.deepEqual(await files.readFolder(open), [])
  await files.close(open)
  assert.equal(await readFile(join(folder, 'b/c'), 'utf8'), 'hello world')
  await files.remove(join(folder, 'b/c'))
  await files.remove(join(folder, 'link'))
  await files.rmdir(join(folder, 'b'))
})

test('a failed file operation tells its error number', async () => {
  await writeFile(join(folder, 'file'), '')
  await symlink('nowhere', join(folder, 'dangling'))
  const hasErrno = (errno: number) => (error: unknown) => error instanceof FileFailure && error.errno === errno
  await assert.rejects(served.client.files.stat(join(folder, 'dangling'), { follow: true }), hasErrno(2))
  await assert.rejects(served.client.files.rmdir(join(folder, 'file')), hasErrno(20))
})

test('the end of the channel ends everything on it, with its reason', async () => {
  const own = await serveClient(makeLocalGuest())
  const server = await startTcpServer()
  const session = own.client.exec(shell('sleep 60'))
  const stream = await own.client.connect(server.port)
  own.wire.destroy()
  assert.equal(await own.client.closed, 'worker_lost')
  assert.deepEqual(await session.exit, { kind: 'lost', why: 'worker_lost' })
  assert.equal(await text(session.stdout), '')
  await closed(stream)
  await assert.rejects(own.client.connect(1), ChannelLost)
  await assert.rejects(own.client.files.realPath('/'), ChannelLost)
  assert.deepEqual(await own.client.exec(shell('true')).exit, { kind: 'lost', why: 'worker_lost' })
  await own.over
  await server.close()
})

function* pieces(data: Buffer): Generator<Buffer> {
  for (let at = 0; at < data.length; at += 100_000) yield data.subarray(at, at + 100_000)
}

function hash(data: Buffer): string {
  return createHash('sha256').update(data).digest('hex')
}

async function closed(stream: Duplex): Promise<void> {
  if (!stream.closed) await new Promise((resolve) => stream.once('close', resolve))
}

test('an agent that sends more data than a file operation asked for fails it, and other operations go on', async () => {
  const [ours, theirs] = duplexPair()
  const prologue = Buffer.alloc(8)
  prologue.writeUInt32BE(1, 0)
  prologue.writeUInt32BE(1000, 4)
  theirs.write(Buffer.concat([prologue, encodeMessage(0, 'core.ready', {})]))
  const reader = makeFrameReader()
  theirs.on('data', (piece: Buffer) => {
    for (const { id } of reader.push(piece)) {
      for (let n = 0; n < 10; n++) theirs.write(Buffer.concat([...encodeData(id, 'core.fs.data', Buffer.alloc(10))]))
      theirs.write(encodeMessage(id, 'core.fs.response', { ok: true, data: 'Unit' }))
    }
  })
  const client = startChannelClient(ours, { whyClosed: () => 'worker_lost', pace: makePiecePacer().paceOf('org') })
  await client.ready
  const tooMuch = (error: unknown): boolean =>
    error instanceof FileFailure && /more data than was asked for/.test(error.message)
  await assert.rejects(client.files.read(1, 0, 99), tooMuch)
  await assert.rejects(client.files.close(1), tooMuch)
  assert.equal((await client.files.read(1, 0, 100)).length, 100)
  client.close()
})

/** Clients whose frames share a pace, each with a command on it. The agent's side of each is written by the test. */
async function startHostile(count: number) {
  const pacer = makePiecePacer(0)
  const pairs = Array.from({ length: count }, () => {
    const [ours, theirs] = duplexPair()
    const prologue = Buffer.alloc(8)
    prologue.writeUInt32BE(1000, 4)
    theirs.resume().write(Buffer.concat([prologue, encodeMessage(0, 'core.ready', {})]))
    const client = startChannelClient(ours, { whyClosed: () => 'worker_lost', pace: pacer.paceOf('org') })
    return { client, agent: theirs }
  })
  await Promise.all(pairs.map(({ client }) => client.ready))
  return pairs.map(({ client, agent }) => ({ client, agent, session: client.exec(shell('cat')) }))
}
const byteFrame = Buffer.concat([...encodeData(1, 'core.exec.stdout', Buffer.from('x'))])
const repeat = (frame: Buffer, count: number): Buffer => Buffer.concat(Array.from({ length: count }, () => frame))

test('frames of a byte from several agents are taken few in a turn, and all arrive', async () => {
  const perTurn = countPerTurn()
  const channels = await startHostile(4)
  for (const { agent, session } of channels) {
    session.stdout.on('data', () => {
      perTurn.count()
    })
    agent.write(repeat(byteFrame, 5_000))
  }
  await waitUntil(() => perTurn.total() === 4 * 5_000)
  assert.ok(perTurn.most() <= 512, `${String(perTurn.most())} frames in a turn`)
  for (const { client } of channels) client.close()
})

test('frames whose fields take long to decode are taken one in a turn, whichever agents send them', async () => {
  const perTurn = countPerTurn()
  const channels = await startHostile(4)
  const slow = encodeMessage(1, 'core.exec.stdout', { data: Array.from({ length: 60_000 }, () => 1) })
  for (const { agent, session } of channels) {
    session.stdout.on('data', () => {
      perTurn.count()
    })
    agent.write(repeat(slow, 5))
  }
  await waitUntil(() => perTurn.total() === 4 * 5)
  assert.ok(perTurn.most() <= 2, `${String(perTurn.most())} frames in a turn`)
  for (const { client } of channels) client.close()
})

test('few frames of a byte wait for a reader, and all arrive once it reads', async () => {
  const [{ client, agent, session }] = (await startHostile(1)) as [Awaited<ReturnType<typeof startHostile>>[0]]
  const count = 300_000
  for (let n = 0; n < count; n += 1000) agent.write(repeat(byteFrame, 1000)) // as reads of a socket are
  await waitUntilUnchanged(() => session.stdout.readableLength)
  assert.ok(session.stdout.readableLength < 70_000, `${String(session.stdout.readableLength)} frames wait`)
  let bytes = 0
  session.stdout.on('data', (piece: Buffer) => void (bytes += piece.length))
  await waitUntil(() => bytes === count)
  client.close()
})

test('sizes and signals wait while the channel takes nothing, the latest size and one of each signal', async () => {
  const [ours, theirs] = duplexPair()
  const prologue = Buffer.alloc(8)
  prologue.writeUInt32BE(1000, 4)
  theirs.write(Buffer.concat([prologue, encodeMessage(0, 'core.ready', {})]))
  const client = startChannelClient(ours, { whyClosed: () => 'worker_lost', pace: makePiecePacer().paceOf('org') })
  await client.ready
  const session = client.exec({ ...shell('cat'), tty: { rows: 24, cols: 80, term: 'xterm' } })
  session.stdin.write(Buffer.alloc(MIB)) // nobody reads the other side
  const before = ours.writableLength
  for (let n = 1; n <= 10_000; n++) {
    session.resize(n, 80)
    session.signal(1 + (n % 2))
    if (n % 100 === 0) await setImmediate()
  }
  assert.ok(ours.writableLength - before < 1024, String(ours.writableLength - before))
  const seen: unknown[] = []
  const reader = makeFrameReader()
  theirs.on('data', (piece: Buffer) => {
    for (const { body } of reader.push(piece)) {
      const { type, payload } = decodeEnvelope(body)
      if (type === 'core.exec.resize') seen.push(asMap(decodeCbor(payload))['rows'])
      if (type === 'core.exec.signal') seen.push(asMap(decodeCbor(payload))['signal'])
    }
  })
  await waitUntil(() => seen.length === 5)
  assert.deepEqual(seen, [1, 2, 10_000, 2, 1])
  client.close()
})
