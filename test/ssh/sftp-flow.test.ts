import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import type ssh2 from 'ssh2'
import type { ChannelClient } from '../../src/channel-client/channel-client.ts'
import type { Files } from '../../src/channel-client/files.ts'
import { serveClient } from '../support/channel-clients.ts'
import { makeLocalGuest } from '../support/local-guest.ts'
import { startSshLoopback } from '../support/ssh-loopback.ts'
import { waitUntil, waitUntilUnchanged } from '../support/wait.ts'

// The pace of SFTP sessions, with real SSH connections over loopback and files of this machine.

const MIB = 1024 * 1024
const PIECE_BYTES = 255 * 1024
/** The longest message that OpenSSH's client takes. */
const MESSAGE_MAX_BYTES = 256 * 1024
/** The client's window of a channel, which it may leave full. */
const WINDOW_BYTES = 2 * MIB
/** More than one session may keep: replies, and requests that wait. */
const HELD_MAX_BYTES = 8 * MIB

const [INIT, OPEN, CLOSE, READ, WRITE] = [1, 3, 4, 5, 6]
const [STATUS, HANDLE, DATA] = [101, 102, 103]
const [FLAG_READ, FLAG_WRITE, FLAG_CREATE] = [1, 2, 8]

type World = {
  readonly dir: string
  readonly connection: ssh2.Client
  readonly channel: ssh2.ClientChannel
  readonly read: ReadReplies
  /** The two ends of the TCP connection. */
  readonly client: Socket
  readonly server: Socket
}

/** Opens an SFTP session as bytes. `change` replaces operations of the sandbox. */
async function startSession(t: TestContext, change: (files: Files) => Partial<Files>): Promise<World> {
  const served = await serveClient(makeLocalGuest())
  const { files } = served.client
  const sandbox: ChannelClient = { ...served.client, files: { ...files, ...change(files) } }
  const dir = mkdtempSync(join(tmpdir(), 'sandyard-sftp-'))
  t.after(async () => {
    served.client.close()
    await served.over
    rmSync(dir, { recursive: true, force: true })
  })
  const { connection, client, server } = await startSshLoopback(t, sandbox)
  const channel = await openSftp(connection)
  return { dir, connection, channel, client, server, read: makeReader(channel) }
}

function openSftp(connection: ssh2.Client): Promise<ssh2.ClientChannel> {
  return new Promise((resolve, reject) => {
    connection.subsys('sftp', (error, opened) => {
      if (error === undefined) resolve(opened)
      else reject(error)
    })
  })
}

function uint(...values: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * values.length)
  for (const [n, value] of values.entries()) bytes.writeUInt32BE(value, 4 * n)
  return bytes
}

function text(bytes: string | Buffer): Buffer {
  return Buffer.concat([uint(bytes.length), Buffer.from(bytes)])
}

function message(type: number, ...fields: readonly Buffer[]): Buffer {
  const body = Buffer.concat([Buffer.of(type), ...fields])
  return Buffer.concat([uint(body.length), body])
}

type Reply = { readonly type: number; readonly id: number; readonly fields: Buffer }

/** Reads the next so many replies. Between the calls, nothing is read. */
type ReadReplies = (count: number) => Promise<readonly Reply[]>

function makeReader(channel: ssh2.ClientChannel): ReadReplies {
  let buffered: Buffer = Buffer.alloc(0)
  const take = async (bytes: number): Promise<Buffer> => {
    while (buffered.length < bytes) {
      const found: unknown = channel.read()
      if (found instanceof Buffer) buffered = Buffer.concat([buffered, found])
      else await once(channel, 'readable')
    }
    const taken = buffered.subarray(0, bytes)
    buffered = buffered.subarray(bytes)
    return taken
  }
  return async (count) => {
    const replies: Reply[] = []
    while (replies.length < count) {
      const body = await take((await take(4)).readUInt32BE())
      replies.push({ type: body.readUInt8(), id: body.readUInt32BE(1), fields: body.subarray(5) })
    }
    return replies
  }
}

/** Begins a session, opens a file and resolves with its handle. */
async function openFile({ channel, read }: World, path: string, flags: number): Promise<Buffer> {
  channel.write(message(INIT, uint(3)))
  channel.write(message(OPEN, uint(0), text(path), uint(flags, 0)))
  const [, opened] = await read(2)
  assert.equal(opened?.type, HANDLE)
  return Buffer.from(opened.fields)
}

/** Counts what the sandbox has answered to reads and the server has not yet given to its socket's kernel. */
function countHeld(): {
  readonly change: (files: Files) => Partial<Files>
  peakBytes(server: Socket): number
  reads(): number
} {
  let reads = 0
  return {
    change: (files) => ({
      async read(...args) {
        reads += 1
        return await files.read(...args)
      },
    }),
    reads: () => reads,
    peakBytes: ({ bytesWritten, writableLength }) => reads * PIECE_BYTES - (bytesWritten - writableLength),
  }
}

const READS = 200

for (const how of ['leaves its window full', 'does not read its TCP connection'] as const) {
  test(`the server keeps few replies for a client that ${how}, and sends all once it reads`, async (t) => {
    const held = countHeld()
    const world = await startSession(t, held.change)
    const { dir, channel, client, server, read } = world
    writeFileSync(join(dir, 'file'), Buffer.alloc(PIECE_BYTES, 'x'))
    const handle = await openFile(world, join(dir, 'file'), FLAG_READ)
    if (how === 'does not read its TCP connection') {
      channel.on('readable', () => undefined)
      grantWindow(channel, 1024 * MIB)
      client.pause()
    }
    for (let id = 1; id <= READS; id++) channel.write(message(READ, uint(id), handle, uint(0, 0, PIECE_BYTES)))
    await waitUntilUnchanged(() => held.reads())
    assert.ok(held.peakBytes(server) <= HELD_MAX_BYTES, String(held.peakBytes(server)))
    assert.ok(held.reads() < READS, 'the client must be slow enough for the test')
    client.resume()
    const replies = await read(READS)
    assert.deepEqual([...new Set(replies.map(({ type }) => type))], [DATA])
    assert.equal(new Set(replies.map(({ id }) => id)).size, READS)
  })
}

test('a client that sends more than its window allows loses its connection', async (t) => {
  const world = await startSession(t, () => ({ write: () => new Promise(() => undefined) }))
  const { dir, channel, client, server } = world
  const handle = await openFile(world, join(dir, 'file'), FLAG_WRITE | FLAG_CREATE)
  const before = server.bytesRead
  partsOf(channel).outgoing.window = Infinity
  const data = text(Buffer.alloc(PIECE_BYTES - 1024))
  for (let id = 0; id < 192; id++) channel.write(message(WRITE, uint(id), handle, uint(0, 0), data))
  await new Promise((resolve) => client.once('close', resolve))
  assert.ok(server.bytesRead - before <= HELD_MAX_BYTES + WINDOW_BYTES, String(server.bytesRead - before))
})

/** Tells the server that it may send so many bytes. Clients may do so at any time. */
function grantWindow(channel: ssh2.ClientChannel, bytes: number): void {
  const { _client: connection, outgoing } = partsOf(channel)
  connection._protocol.channelWindowAdjust(outgoing.id, bytes)
}

/** What the library's client keeps to itself, because it has honest windows. */
function partsOf(channel: ssh2.ClientChannel): {
  readonly _client: { readonly _protocol: { channelWindowAdjust(id: number, bytes: number): void } }
  readonly outgoing: { readonly id: number; window: number }
} {
  return channel as unknown as ReturnType<typeof partsOf>
}

test('a client that pipelines 48 MiB of writes to a slow sandbox is slowed down, and none is refused', async (t) => {
  const gate = Promise.withResolvers<undefined>()
  const world = await startSession(t, (files) => ({
    async write(...args) {
      await gate.promise
      await files.write(...args)
    },
  }))
  const { dir, channel, server, read } = world
  const path = join(dir, 'file')
  const handle = await openFile(world, path, FLAG_WRITE | FLAG_CREATE)
  const before = server.bytesRead
  const [count, bytes] = [192, PIECE_BYTES - 1024]
  for (let id = 0; id < count; id++)
    channel.write(message(WRITE, uint(id), handle, uint(0, id * bytes), text(Buffer.alloc(bytes, id))))
  await waitUntilUnchanged(() => server.bytesRead - before)
  assert.ok(server.bytesRead - before <= HELD_MAX_BYTES + WINDOW_BYTES, String(server.bytesRead - before))
  gate.resolve(undefined)
  const replies = await read(count)
  for (const { type, fields } of replies) assert.deepEqual([type, fields.readUInt32BE()], [STATUS, 0])
  channel.write(message(CLOSE, uint(0), handle))
  await read(1)
  const written = readFileSync(path)
  assert.equal(written.length, count * bytes)
  for (let id = 0; id < count; id++) assert.equal(written[id * bytes], id)
})

test('requests that a client sent before it ended its input are answered before the session ends', async (t) => {
  const world = await startSession(t, () => ({}))
  const { dir, channel, read } = world
  writeFileSync(join(dir, 'file'), 'content')
  const handle = await openFile(world, join(dir, 'file'), FLAG_READ)
  const exit = once(channel, 'exit')
  channel.end(message(READ, uint(7), handle, uint(0, 0, 100)))
  const [reply] = await read(1)
  assert.deepEqual([reply?.id, reply?.type], [7, DATA])
  channel.resume()
  assert.equal((await exit)[0], 0)
})

test('a read of more than a message takes gets what fits into one', async (t) => {
  const world = await startSession(t, () => ({}))
  const { dir, channel, read } = world
  writeFileSync(join(dir, 'file'), Buffer.alloc(MIB, 'x'))
  const handle = await openFile(world, join(dir, 'file'), FLAG_READ)
  channel.write(message(READ, uint(1), handle, uint(0, 0, MIB)))
  const [reply] = await read(1)
  assert.equal(reply?.type, DATA)
  assert.ok(uint(0, 0).length + 1 + reply.fields.length <= MESSAGE_MAX_BYTES, String(reply.fields.length))
  assert.ok(reply.fields.readUInt32BE() >= PIECE_BYTES)
})

test('a request with a length that is no length ends its session alone', async (t) => {
  const { channel, connection, read } = await startSession(t, () => ({}))
  channel.write(message(INIT, uint(3)))
  await read(1)
  channel.write(Buffer.concat([uint(0xffff_ffff), Buffer.of(READ, 0, 0)]))
  await once(channel.resume(), 'close')
  const other = await openSftp(connection)
  other.write(message(INIT, uint(3)))
  assert.equal((await makeReader(other)(1)).length, 1)
})

test('a connection has ten SFTP sessions, and a closed one counts until its requests are done', async (t) => {
  const gate = Promise.withResolvers<undefined>()
  let begun = 0
  const world = await startSession(t, () => ({
    write() {
      begun += 1
      return gate.promise
    },
  }))
  const { dir, connection, channel } = world
  const handle = await openFile(world, join(dir, 'file'), FLAG_WRITE | FLAG_CREATE)
  for (let n = 1; n < 10; n++) await openSftp(connection)
  await assert.rejects(openSftp(connection))
  channel.write(message(WRITE, uint(1), handle, uint(0, 0), text('content')))
  await waitUntil(() => begun === 1)
  channel.close()
  await once(channel.resume(), 'close')
  await assert.rejects(openSftp(connection))
  gate.resolve(undefined)
  await waitUntil(() => openSftp(connection).catch(() => false as const))
})
