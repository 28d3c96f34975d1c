import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable, Writable } from 'node:stream'
import { test } from 'node:test'
import fc from 'fast-check'
import { encodeMessage, MAX_DATA_BYTES } from '../../../src/channel/envelope.ts'
import { encodeFrameHead, FLAG_TERMINAL } from '../../../src/channel/frame.ts'
import { ExecFailure } from '../../../src/worker/channel/guest.ts'
import type { Guest } from '../../../src/worker/channel/guest.ts'
import { makePiecePacer } from '../../../src/lib/turns/piece-pacer.ts'
import { connectAgent, type AgentClient } from '../../support/agent-client.ts'
import { isAlive, makeLocalGuest } from '../../support/local-guest.ts'
import { countPerTurn } from '../../support/most-per-turn.ts'
import { waitUntil, waitUntilUnchanged } from '../../support/wait.ts'

const MIB = 1024 * 1024
const guest = makeLocalGuest()

test('the agent first sends an id range that no client mistakes for the old prologue, then core.ready', async () => {
  const client = connectAgent(guest)
  const ready = await client.next((message) => message.type === 'core.ready')
  assert.equal(client.prologue().toString('hex'), '0000000101ffffff')
  assert.equal(ready.id, 0)
  assert.equal(ready.flags, 0)
  for (const field of ['boot_time_ns', 'init_time_ns', 'ready_time_ns'])
    assert.equal(typeof ready.payload[field], 'number')
  await client.hangUp()
})

test('a process is started, its outputs stay separate, and its exit code comes last', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', 'echo out; echo err >&2; exit 3'] })
  const { last, code, stdout, stderr } = await client.finish(id)
  assert.deepEqual([code, stdout, stderr], [3, 'out\n', 'err\n'])
  const types = client.received.filter((message) => message.id === id).map((message) => message.type)
  assert.equal(types[0], 'core.exec.started')
  assert.equal(types.at(-1), 'core.exec.exited')
  assert.equal(last.flags, 1)
  await client.hangUp()
})

test('input reaches the process, a second end of input is no error, and input after the exit is ignored', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'cat' })
  client.send(id, 'core.exec.stdin', { data: Buffer.from('hello') })
  client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  assert.equal((await client.finish(id)).stdout, 'hello')
  client.send(id, 'core.exec.stdin', { data: Buffer.from('late') })
  client.send(id, 'core.exec.signal', { signal: 9 })
  client.send(id, 'core.exec.resize', { rows: 1, cols: 1 })
  client.send(99, 'core.ping', {})
  await client.next((message) => message.type === 'core.pong')
  assert.equal(client.received.filter((message) => message.type === 'core.error').length, 0)
  await client.hangUp()
})

test('frames of a later generation are served, and an end of input that comes before the start is kept', async () => {
  const client = connectAgent(guest)
  // The clients 0.7 stamp 10 on every frame, and send the end of input right after the request.
  const request = { cmd: 'cat', args: [], env: [], cwd: '/', user: null, tty: false, rows: 24, cols: 80, rlimits: [] }
  const exec = encodeMessage(1, 'core.exec.request', request)
  assert.equal(exec[12], 7)
  exec[12] = 10
  const endOfInput = '000000250000000100a361760a61746f636f72652e657865632e737464696e617047a1646461746140'
  client.sendRaw(Buffer.concat([exec, Buffer.from(endOfInput, 'hex')]))
  const { code, stdout } = await client.finish(1)
  assert.deepEqual([code, stdout], [0, ''])
  await client.hangUp()
})

test('without an end of input the input of a process stays open', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'cat' })
  client.send(id, 'core.exec.stdin', { data: Buffer.from('x') })
  await waitUntil(() => client.text(id) === 'x')
  assert.equal(
    client.received.some((message) => message.type === 'core.exec.exited'),
    false,
  )
  await client.hangUp()
})

test('a process that was killed by a signal to its group exits with -1', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', 'sleep 100 & echo up; wait'] })
  await waitUntil(() => client.text(id) === 'up\n')
  client.send(id, 'core.exec.signal', { signal: 15 })
  assert.equal((await client.finish(id)).code, -1)
  await client.hangUp()
})

test('a number that is not one of a signal is ignored', async () => {
  const sent: number[] = []
  const noting: Guest = {
    ...guest,
    async exec(request) {
      const process = await guest.exec(request)
      return {
        ...process,
        signal(signal) {
          sent.push(signal)
          process.signal(signal)
        },
      }
    },
  }
  const client = connectAgent(noting)
  const id = client.exec({ cmd: 'sleep', args: ['100'] })
  for (const signal of [-15, 0, 65, 2 ** 31 - 1, 15]) client.send(id, 'core.exec.signal', { signal })
  assert.equal((await client.finish(id)).code, -1)
  assert.deepEqual(sent, [15])
  await client.hangUp()
})

test('the exit is reported only after background processes have closed the output', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', '{ sleep 0.5; echo late; } & echo early'] })
  const { stdout } = await client.finish(id)
  assert.equal(stdout, 'early\nlate\n')
  await client.hangUp()
})

test('the exit is reported even if the output of the process ended before the channel read it', async () => {
  const ended = (): Readable => {
    const stream = Readable.from([])
    stream.resume()
    return stream
  }
  const [stdout, stderr] = [ended(), ended()]
  await waitUntil(() => stdout.destroyed && stderr.destroyed)
  const quick: Guest = {
    ...guest,
    exec: () =>
      Promise.resolve({
        pid: 2,
        stdin: new Writable(),
        stdout,
        stderr,
        exited: Promise.resolve(0),
        resize: () => assert.fail('nobody asked'),
        signal: () => assert.fail('nobody asked'),
      }),
  }
  const client = connectAgent(quick)
  assert.equal((await client.finish(client.exec({ cmd: 'x' }))).code, 0)
  await client.hangUp()
})

test('a failed write to a process is reported once, and does not end its session', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', 'exec <&-; echo closed; sleep 0.3; exit 5'] })
  await waitUntil(() => client.text(id) === 'closed\n')
  for (let n = 0; n < 5; n++) client.send(id, 'core.exec.stdin', { data: Buffer.alloc(MIB) })
  assert.equal((await client.finish(id)).code, 5)
  const errors = client.received.filter((message) => message.type === 'core.exec.stdin.error')
  assert.equal(errors.length, 1)
  assert.equal(errors[0]?.payload['errno_name'], 'EPIPE')
  assert.equal(errors[0]?.flags, 0)
  await client.hangUp()
})

test('a process that cannot be started gets one exec.failed with the kind, errno and stage of the guest', async () => {
  const failing: Guest = {
    ...guest,
    exec: () =>
      Promise.reject(new ExecFailure('bad_cwd', 'no folder', { errno: 2, errnoName: 'ENOENT', stage: 'chdir' })),
  }
  const client = connectAgent(failing)
  const { last } = await client.finish(client.exec({ cmd: 'x' }))
  assert.equal(last.type, 'core.exec.failed')
  assert.deepEqual(last.payload, {
    kind: 'bad_cwd',
    errno: 2,
    errno_name: 'ENOENT',
    message: 'no folder',
    stage: 'chdir',
  })
  await client.hangUp()
})

test('the message of a bug in a guest is hidden from the client', async () => {
  const client = connectAgent({ ...guest, exec: () => Promise.reject(new Error('path /secret/of/the/host')) })
  const { last } = await client.finish(client.exec({ cmd: 'x' }))
  assert.equal(last.payload['kind'], 'other')
  assert.ok(!JSON.stringify(last.payload).includes('secret'))
  await client.hangUp()
})

test('sessions run in parallel and their output is not mixed up', async () => {
  const client = connectAgent(guest)
  const ids = Array.from({ length: 20 }, (_, n) =>
    client.exec({ cmd: 'sh', args: ['-c', `echo ${String(n)}; sleep 0.1; echo ${String(n)}`] }),
  )
  const ends = await Promise.all(ids.map((id) => client.finish(id)))
  assert.deepEqual(
    ends.map((end) => end.stdout),
    ids.map((_, n) => `${String(n)}\n${String(n)}\n`),
  )
  await client.hangUp()
})

test('a session beyond the limit fails, and the end of another makes a new one possible', async () => {
  const client = connectAgent(guest, { deps: { limits: { sessions: 2 } } })
  const first = client.exec({ cmd: 'cat' })
  client.exec({ cmd: 'cat' })
  const refused = await client.finish(client.exec({ cmd: 'true' }))
  assert.equal(refused.last.type, 'core.exec.failed')
  assert.equal(refused.last.payload['errno_name'], 'EAGAIN')
  client.send(first, 'core.exec.stdin', { data: Buffer.alloc(0) })
  await client.finish(first)
  await waitUntil(() => client.received.some((message) => message.type === 'core.exec.exited'))
  assert.equal((await client.finish(client.exec({ cmd: 'true' }))).code, 0)
  await client.hangUp()
})

test('the process groups of a client are killed when it goes away', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', 'sleep 1000 & echo $!; wait'] })
  const inner = Number(await waitUntil(() => client.text(id) !== '' && client.text(id)))
  const started = await client.next((message) => message.type === 'core.exec.started')
  await client.hangUp()
  await waitUntil(() => !isAlive(inner))
  assert.equal(isAlive(Number(started.payload['pid'])), false)
})

test('a process that is being started is killed when its client disconnects', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-channel-'))
  const pidFile = join(folder, 'pid')
  let proceed = (): void => assert.fail('not started yet')
  const slow: Guest = {
    ...guest,
    async exec(request) {
      await new Promise<void>((resolve) => (proceed = resolve))
      return await guest.exec(request)
    },
  }
  const client = connectAgent(slow)
  client.exec({ cmd: 'sh', args: ['-c', `echo $$ > ${pidFile}; sleep 1000`] })
  client.send(1, 'core.exec.stdin', { data: Buffer.from('early') })
  await waitUntil(() => client.stream.writableLength === 0)
  const gone = client.hangUp()
  proceed()
  await gone
  // The shell creates the file before it writes its pid, so the file is empty if the shell was killed between the two
  // steps.
  const pid = existsSync(pidFile) ? readFileSync(pidFile, 'utf8').trim() : ''
  if (pid !== '') assert.equal(isAlive(Number(pid)), false)
  rmSync(folder, { recursive: true })
})

test('100 MB of output arrive in frames of at most 1 MiB', async () => {
  let bytes = 0
  let largest = 0
  const client = connectAgent(guest, {
    onOutput: (data) => {
      bytes += data.length
      largest = Math.max(largest, data.length)
    },
  })
  const id = client.exec({ cmd: 'head', args: ['-c', '100000000', '/dev/zero'] })
  assert.equal((await client.finish(id)).code, 0)
  assert.equal(bytes, 100_000_000)
  assert.ok(largest <= MAX_DATA_BYTES)
  await client.hangUp()
})

test('a client that does not read blocks its process instead of filling memory', async () => {
  const client = connectAgent(guest)
  await client.next((message) => message.type === 'core.ready')
  client.stream.pause()
  const before = process.memoryUsage.rss()
  client.exec({ cmd: 'head', args: ['-c', '500000000', '/dev/zero'] })
  let last = -1
  await waitUntil(() => {
    const queued = client.stream.readableLength
    const isStill = queued > 0 && queued === last
    last = queued
    return isStill
  })
  assert.ok(process.memoryUsage.rss() - before < 64 * MIB)
  await client.hangUp()
})

test('the channel stops reading from the client while a process does not read its input, and continues when it does', async () => {
  const client = connectAgent(guest)
  const id = client.exec({ cmd: 'sh', args: ['-c', 'sleep 1; wc -c'] })
  const chunk = Buffer.alloc(MIB)
  for (let n = 0; n < 50; n++) client.send(id, 'core.exec.stdin', { data: chunk })
  client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  await client.next((message) => message.type === 'core.exec.started')
  assert.ok(client.stream.writableLength > 30 * MIB, 'the rest waits on the side of the client')
  assert.equal((await client.finish(id)).stdout.trim(), String(50 * MIB))
  await client.hangUp()
})

test('the pending input of all processes together is bounded, and they get everything once they read', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-input-'))
  t.after(() => {
    rmSync(folder, { recursive: true })
  })
  const client = connectAgent(guest)
  t.after(() => client.hangUp())
  const script = `until [ -e ${folder}/go ]; do sleep 0.05; done; wc -c`
  const ids = Array.from({ length: 20 }, () => client.exec({ cmd: 'sh', args: ['-c', script] }))
  for (const id of ids) {
    for (let n = 0; n < 4; n++) client.send(id, 'core.exec.stdin', { data: Buffer.alloc(MIB) })
    client.send(id, 'core.exec.stdin', { data: Buffer.alloc(0) })
  }
  await client.next((message) => message.type === 'core.exec.started')
  await waitUntilUnchanged(() => client.stream.writableLength)
  assert.ok(
    client.stream.writableLength > 40 * MIB,
    `only ${String(client.stream.writableLength)} bytes of 80 MiB wait`,
  )
  writeFileSync(join(folder, 'go'), '')
  for (const id of ids) assert.equal((await client.finish(id)).stdout.trim(), String(4 * MIB))
})

test('ping and touch are answered; only the touch counts as activity, and an exec counts', async () => {
  let activities = 0
  const client = connectAgent(guest, { deps: { onActivity: () => (activities += 1) } })
  client.send(5, 'core.ping', {})
  const pong = await client.next((message) => message.type === 'core.pong')
  assert.deepEqual([pong.id, pong.flags, activities], [5, 1, 0])
  client.send(6, 'core.touch', {})
  const touched = await client.next((message) => message.type === 'core.touched')
  assert.deepEqual([touched.payload['activity_seq'], activities], [1, 1])
  await client.finish(client.exec({ cmd: 'echo', args: ['x'] }))
  assert.ok(activities > 3)
  await client.hangUp()
})

test('a message that can’t be understood is answered by core.error, and the channel goes on', async () => {
  const client = connectAgent(guest)
  const kindOf = async (id: number): Promise<unknown> =>
    (await client.next((message) => message.type === 'core.error' && message.id === id)).payload['kind']
  client.sendRaw(Buffer.concat([encodeFrameHead(1001, 0, 3), Buffer.from([0xff, 0xff, 0xff])]))
  assert.equal(await kindOf(1001), 'malformed_message')
  client.send(1002, 'core.ready', {})
  assert.equal(await kindOf(1002), 'unsupported_message_type')
  client.send(1003, 'core.shutdown', {})
  assert.equal(await kindOf(1003), 'unsupported_message_type')
  const flagged = encodeMessage(1004, 'core.ping', {})
  flagged.writeUInt8(FLAG_TERMINAL, 8)
  client.sendRaw(flagged)
  assert.equal(await kindOf(1004), 'invalid_flags')
  client.send(1005, 'core.exec.resize', { rows: 'many', cols: 1 })
  assert.equal(await kindOf(1005), 'invalid_payload')
  client.send(0, 'core.ping', {})
  assert.equal(await kindOf(0), 'invalid_session')
  assert.equal((await client.finish(client.exec({ cmd: 'true' }))).code, 0)
  await client.hangUp()
})

test('an exec request that can’t be decoded gets core.exec.failed, which the client understands', async () => {
  const client = connectAgent(guest)
  client.send(7, 'core.exec.request', { args: 5 })
  assert.equal((await client.finish(7)).last.payload['kind'], 'bad_args')
  client.send(8, 'core.exec.request', { cmd: 'a\0b' })
  assert.equal((await client.finish(8)).last.payload['kind'], 'bad_args')
  await client.hangUp()
})

test('a frame length outside the limits ends the connection', async () => {
  const client = connectAgent(guest)
  client.sendRaw(Buffer.from([0xff, 0xff, 0xff, 0xff]))
  await client.over
})

test('random bytes neither crash the channel nor leave it open with unfinished work', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.uint8Array({ maxLength: 200 }), { maxLength: 10 }), async (pieces) => {
      const client = connectAgent(guest)
      for (const piece of pieces) client.sendRaw(Buffer.concat([encodeFrameHead(3, 0, piece.length), piece]))
      client.sendRaw(Buffer.concat(pieces))
      await client.hangUp()
    }),
    { numRuns: 100 },
  )
})

test('the channel stops reading from a client that sends much and reads no replies', async () => {
  const client = connectAgent(guest)
  await client.next((message) => message.type === 'core.ready')
  client.stream.pause()
  const flood = Buffer.concat(
    Array.from({ length: 1000 }, () => Buffer.concat([encodeFrameHead(1, 0, 1), Buffer.from([0xff])])),
  )
  for (let n = 0; n < 2000; n++) client.sendRaw(flood)
  const before = process.memoryUsage.rss()
  await waitUntil(() => client.stream.writableLength > 0 && isStill(() => client.stream.writableLength), 60_000)
  assert.ok(process.memoryUsage.rss() - before < 300 * MIB)
  await client.hangUp()
})

for (const highWaterMark of [64 * 1024, MIB])
  test(`few small replies wait for a client that doesn’t read, and it gets all of them later, with a buffer of ${String(highWaterMark)} bytes`, async () => {
    let handled = 0
    const onActivity = (): void => void (handled += 1)
    const client = connectAgent(guest, {
      stream: { highWaterMark },
      deps: { onActivity, pace: makePiecePacer(0).paceOf('org') },
    })
    await client.next((message) => message.type === 'core.ready')
    client.stream.pause()
    const count = 80_000
    const touches = Buffer.concat(Array.from({ length: 1000 }, (_, n) => encodeMessage(n + 1, 'core.touch', {})))
    for (let n = 0; n < count; n += 1000) client.sendRaw(touches)
    await waitUntilUnchanged(() => handled)
    assert.ok(handled < 60_000, `${String(handled)} replies wait`)
    client.stream.resume()
    await waitUntil(() => client.received.length > count)
    assert.equal(client.received.filter(({ type }) => type === 'core.touched').length, count)
    await client.hangUp()
  })

let lastSeen = -1
function isStill(read: () => number): boolean {
  const value = read()
  const isSame = value === lastSeen
  lastSeen = value
  return isSame
}

/** Connects clients whose frames share a pace. `perTurn` counts those that are a use of the sandbox. */
function connectPaced(count: number) {
  const perTurn = countPerTurn()
  const pacer = makePiecePacer(0)
  const deps = { onActivity: () => perTurn.count() }
  const clients = Array.from({ length: count }, () =>
    connectAgent(guest, { deps: { ...deps, pace: pacer.paceOf('org') } }),
  )
  return { perTurn, clients }
}

test('small frames of several clients are handled few in a turn, and each is answered', async () => {
  const { perTurn, clients } = connectPaced(4)
  const touches = Buffer.concat(Array.from({ length: 3_000 }, (_, n) => encodeMessage(n + 1, 'core.touch', {})))
  for (const client of clients) client.sendRaw(touches)
  for (const client of clients) await client.next(({ id, type }) => id === 3_000 && type === 'core.touched')
  // After 512 frames in a turn, each of the other clients has one more handled.
  assert.ok(perTurn.most() <= 512 + 4, `${String(perTurn.most())} frames in a turn`)
  for (const client of clients) {
    const answers = client.received.filter(({ type }) => type === 'core.touched')
    assert.deepEqual(answers.map(({ id }) => id), Array.from({ length: 3_000 }, (_, n) => n + 1)) // prettier-ignore
    await client.hangUp()
  }
})

test('frames whose fields take long to decode count as many, and so do starts of commands', async () => {
  const { perTurn, clients } = connectPaced(1)
  const [client] = clients as [AgentClient]
  const numbers = Array.from({ length: 30_000 }, () => 1)
  client.sendRaw(
    Buffer.concat(Array.from({ length: 20 }, () => encodeMessage(7, 'core.exec.stdin', { data: numbers }))),
  )
  client.send(8, 'core.touch', {})
  await client.next(({ type }) => type === 'core.touched')
  assert.ok(perTurn.most() <= 4, `${String(perTurn.most())} frames in a turn`)
  const request = { args: [], env: [], cwd: 'no such folder', user: null, tty: false, rlimits: [] }
  client.sendRaw(
    Buffer.concat(
      Array.from({ length: 100 }, (_, n) => encodeMessage(n + 100, 'core.exec.request', { ...request, cmd: 7 })),
    ),
  )
  await client.next(({ id, type }) => id === 199 && type === 'core.exec.failed')
  // A request and its refusal are a use each.
  assert.ok(perTurn.most() <= 2 * 16, `${String(perTurn.most())} uses in a turn`)
  await client.hangUp()
})

test('a client that leaves while its frames wait leaves nothing behind', async () => {
  const { perTurn, clients } = connectPaced(2)
  const [leaving, other] = clients as [AgentClient, AgentClient]
  const touches = Buffer.concat(Array.from({ length: 2_000 }, () => encodeMessage(1, 'core.touch', {})))
  leaving.sendRaw(touches)
  await leaving.next(({ type }) => type === 'core.touched')
  await leaving.hangUp()
  const handled = perTurn.total()
  other.sendRaw(touches)
  await waitUntil(() => other.received.filter(({ type }) => type === 'core.touched').length === 2_000)
  assert.equal(perTurn.total() - handled, 2_000)
  await other.hangUp()
})
