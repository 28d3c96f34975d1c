import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { isLoopback, makeLoopbackConnections } from '../../../src/worker/network/loopback-connections.ts'

// A network namespace of its own stands for that of a sandbox.

const isRoot = process.getuid?.() === 0
const options = isRoot ? {} : { skip: 'network namespaces need root' }
const namespace = `sytest-${String(process.pid)}`
const netnsPath = `/run/netns/${namespace}`
const never = new AbortController().signal
const limit = { timeoutMs: 10_000 }
const connections = makeLoopbackConnections(makeLog('silent'))
/** Answers with all that it got once its peer has ended, and says its port. */
const SERVER = `
  const { createServer } = require('node:net')
  for (const host of ['127.0.0.1', '::1']) {
    const server = createServer({ allowHalfOpen: true }, (peer) => {
      const got = []
      peer.on('error', () => peer.destroy()).on('data', (data) => got.push(data)).on('end', () => peer.end(Buffer.concat(got)))
    })
    server.listen({ host, port: 3000 }, () => console.log('ready'))
  }`
let server: ReturnType<typeof spawn> | null = null

before(async () => {
  if (!isRoot) return
  await runCommand('ip', ['netns', 'add', namespace], limit)
  await runCommand('ip', ['-n', namespace, 'link', 'set', 'lo', 'up'], limit)
  server = spawn('nsenter', [`--net=${netnsPath}`, process.execPath, '-e', SERVER], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  for (let lines = ''; lines.split('ready').length < 3;)
    lines += String((await once(server.stdout ?? process.stdin, 'data'))[0])
})
after(async () => {
  connections.close()
  server?.kill('SIGKILL')
  if (isRoot) await runCommand('ip', ['netns', 'del', namespace], limit)
})

const target = (change = {}) => ({ netnsPath, pid: server?.pid ?? 0, address: '127.0.0.1', port: 3000, ...change })

for (const address of ['127.0.0.1', '::1'])
  test(`a connection to ${address} carries bytes both ways, and each direction ends by itself`, options, async () => {
    const socket = await connections.connect(target({ address }), never)
    const sent = Buffer.alloc(3_000_000, 'sandyard ')
    socket.end(sent)
    const got = await text(socket)
    assert.equal(got.length, sent.length)
    assert.ok(got === sent.toString())
    assert.ok(socket.destroyed, 'the socket closes after both ends')
  })

test('many connections are opened at once, and each gets its own bytes', options, async () => {
  const replies = await Promise.all(
    Array.from({ length: 200 }, async (_, index) => {
      const socket = await connections.connect(target(), never)
      socket.end(`number ${String(index)}`)
      return await text(socket)
    }),
  )
  assert.deepEqual(
    replies,
    replies.map((_, index) => `number ${String(index)}`),
  )
})

test('a port on which nothing listens is refused as clients expect it', options, async () => {
  const reason = 'connect 127.0.0.1:3001: Connection refused (os error 111)'
  await assert.rejects(connections.connect(target({ port: 3001 }), never), { message: reason })
})

test('a process that is in another namespace shows that the sandbox has ended', options, async () => {
  await assert.rejects(connections.connect(target({ pid: process.pid }), never), /the sandbox has ended/)
  await assert.rejects(connections.connect(target({ pid: 2 ** 22 + 1 }), never), /the sandbox has ended/)
  await assert.rejects(connections.connect(target({ netnsPath: '/run/netns/none' }), never), /No such file/)
})

test('an aborted connection is not opened, and the next one is', options, async () => {
  const abort = new AbortController()
  const aborted = connections.connect(target(), abort.signal)
  abort.abort(new Error('no longer needed'))
  await assert.rejects(aborted, /no longer needed/)
  const socket = await connections.connect(target(), never)
  socket.end('next')
  assert.equal(await text(socket), 'next')
})

test('a namespace does not outlive its sandbox: the helper has left it', options, async () => {
  const { stdout } = await runCommand('ip', ['netns', 'pids', namespace], limit)
  assert.deepEqual(stdout.trim().split(/\s+/), [String(server?.pid)])
})

test('a helper that was killed is started again', options, async () => {
  const { stdout } = await runCommand('pgrep', ['--full', `loopback-connections.pl ${String(process.pid)}$`], limit)
  process.kill(Number(stdout.trim()), 'SIGKILL')
  await assert.rejects(connections.connect(target(), never), /has ended/)
  const socket = await connections.connect(target(), never)
  socket.end('again')
  assert.equal(await text(socket), 'again')
})

test('only loopback addresses are reached so, and no names', () => {
  const hosts = ['127.0.0.1', '127.8.8.8', '::1', 'localhost', '10.0.0.1', '127.0.0.1.example', '::2', '1270.0.0.1', '']
  assert.deepEqual(hosts.filter(isLoopback), ['127.0.0.1', '127.8.8.8', '::1'])
})
