import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { TestContext } from 'node:test'
import { makeLog } from '../../../../src/lib/log.ts'
import type { Guest } from '../../../../src/worker/channel/guest.ts'
import { makeGuest } from '../../../support/container-guest.ts'
import type { Container } from '../../../../src/worker/drivers/oci/container.ts'
import { makeLoopbackConnections } from '../../../../src/worker/network/loopback-connections.ts'
import { makeLauncher } from '../../../../src/worker/drivers/oci/run/runtime/launcher.ts'
import { toolCommand } from '../../../../src/contract/workers/guest-tools.ts'
import { connectAgent } from '../../../support/agent-client.ts'
import type { AgentClient } from '../../../support/agent-client.ts'
import { startTestContainer, UNLIMITED_SESSIONS, whyNoContainer } from '../../../support/container.ts'
import type { TestContainer } from '../../../support/container.ts'
import { openTcp } from '../../../support/tcp-client.ts'
import { startTcpServer } from '../../../support/tcp-server.ts'
import { waitUntil, waitUntilUnchanged } from '../../../support/wait.ts'

// Connections into a real container. Its server is a small script for the toolbox's perl.

/** The two ways in which the worker connects: every test of a loopback address runs with both. */
const WAYS = ['a process in the sandbox', 'a socket in its network namespace'] as const
type Way = (typeof WAYS)[number]

const missing = whyNoContainer()
const skip = missing === null ? false : `no real container here: ${missing}`
const MIB = 1024 * 1024
const LIMIT_MS = 60_000
/** More than all buffers between a client and a server in the sandbox hold. */
const FLOOD_BYTES = 64 * MIB

let box: TestContainer
let guests: Readonly<Record<Way, Guest>>
const loopback = makeLoopbackConnections(makeLog('silent'))
before(async () => {
  if (missing !== null) return
  box = await startTestContainer({
    // With these variables, our helper programs would load files of the sandbox or print messages in another language.
    spec: { env: [{ key: 'PERL5OPT', value: '-Mno_such_module' }, { key: 'LD_PRELOAD', value: '/no/such.so' }, { key: 'LC_ALL', value: 'de_DE.UTF-8' }] }, // prettier-ignore
  })
  const deps = {
    log: makeLog('silent'),
    sessions: UNLIMITED_SESSIONS,
    launcher: makeLauncher(makeLog('silent')),
    pty: null,
  }
  guests = {
    'a process in the sandbox': makeGuest(box.container, deps),
    'a socket in its network namespace': makeGuest(namingItsNetwork(box.container), { ...deps, loopback }),
  }
})
after(() => {
  loopback.close()
  if (missing === null) box.remove()
})

/** The container as a worker sees it: the runtime made the namespace of this one, a worker makes those of sandboxes itself. */
function namingItsNetwork(container: Container): Container {
  const runDir = join(container.runDir, 'named')
  mkdirSync(runDir, { mode: 0o700 })
  const path = `/proc/${String(container.initPid)}/ns/net`
  const config: unknown = JSON.parse(readFileSync(join(container.runDir, 'config.json'), 'utf8'))
  const linux = { namespaces: [{ type: 'network', path }] }
  writeFileSync(join(runDir, 'config.json'), JSON.stringify(Object.assign({}, config, { linux })))
  return { ...container, runDir }
}

function connect(t: TestContext, way: Way = 'a process in the sandbox'): AgentClient {
  const client = connectAgent(guests[way])
  t.after(() => client.hangUp())
  return client
}

const LISTEN =
  'socket(L, AF_INET, SOCK_STREAM, 0); bind(L, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die $!; listen(L, 128);' +
  'print((unpack_sockaddr_in(getsockname(L)))[0], "\\n"); binmode STDOUT;'

/** Runs a server in the sandbox until the client disconnects, and returns its port. `serve` has the listening socket as L. */
async function serveInside(client: AgentClient, serve: string): Promise<number> {
  const [loader = '', ...args] = toolCommand('tcp.pl').slice(0, 4)
  const script = `BEGIN { @INC = "/.msb/tools/perl5"; $| = 1 } use Socket; ${LISTEN} ${serve}`
  const id = client.exec({ cmd: loader, args: [...args, '-e', script], env: ['PERL5OPT=', 'LD_PRELOAD='] })
  return Number(await waitUntil(() => /^(\d+)\n/.exec(client.text(id))?.[1], LIMIT_MS))
}

const ECHO = 'while (accept(S, L)) { if (!fork) { while (sysread(S, $b, 65536)) { syswrite(S, $b) } exit } close S }'

/** The number of helper processes in this sandbox. Each carries one connection. */
function carriers(): number {
  const namespaceOf = (pid: string): string => {
    try {
      return readlinkSync(join('/proc', pid, 'ns/pid'))
    } catch {
      return '' // it has ended
    }
  }
  const own = namespaceOf(String(box.container.initPid))
  return readdirSync('/proc').filter(
    (pid) => /^\d+$/.test(pid) && namespaceOf(pid) === own && commandOf(pid).includes('/tcp.pl\0'),
  ).length
}

function commandOf(pid: string): string {
  try {
    return readFileSync(join('/proc', pid, 'cmdline'), 'utf8')
  } catch {
    return '' // it has ended
  }
}

for (const way of WAYS)
  test(
    `127.0.0.1 is the sandbox: a server in it is reached, and one on the host is not (by ${way})`,
    { skip },
    async (t) => {
      const client = connect(t, way)
      const host = await startTcpServer()
      t.after(() => host.close())
      const port = await serveInside(client, ECHO)
      const tcp = openTcp(client, 100, { host: '127.0.0.1', port })
      tcp.send('early')
      await tcp.connected()
      await waitUntil(() => tcp.data().toString() === 'early', LIMIT_MS)
      tcp.end()
      assert.equal((await tcp.last()).type, 'core.tcp.closed')
      assert.deepEqual(tcp.types(), ['connected', 'data', 'eof', 'closed'])
      const strange = openTcp(client, 101, { host: '127.0.0.1', port: host.port })
      assert.deepEqual((await strange.last()).payload, {
        error: `connect 127.0.0.1:${String(host.port)}: Connection refused (os error 111)`,
      })
      assert.equal(carriers(), 0)
    },
  )

test('a connection that the sandbox’s network doesn’t allow fails with a message', { skip }, async (t) => {
  const client = connect(t)
  const far = openTcp(client, 100, { host: '192.0.2.1', port: 9 })
  assert.match(String((await far.last()).payload['error']), /^connect 192\.0\.2\.1:9: .+ \(os error \d+\)$/)
  const unknown = openTcp(client, 101, { host: 'no-such-host.invalid', port: 9 })
  assert.match(String((await unknown.last()).payload['error']), /failed to lookup address information: /)
})

for (const way of WAYS)
  test(`megabytes pass completely in both directions at once (by ${way})`, { skip }, async (t) => {
    const client = connect(t, way)
    const port = await serveInside(client, ECHO)
    const tcp = openTcp(client, 100, { host: '127.0.0.1', port })
    const pieces = Array.from({ length: 32 }, () => randomBytes(MIB))
    for (const piece of pieces) tcp.send(piece)
    tcp.end()
    assert.equal((await tcp.last(LIMIT_MS)).type, 'core.tcp.closed')
    assert.ok(tcp.data().equals(Buffer.concat(pieces)))
  })

for (const way of WAYS)
  test(
    `when the server ends its side first, the client sees an end and can still send (by ${way})`,
    { skip },
    async (t) => {
      const client = connect(t, way)
      const port = await serveInside(client, 'while (accept(S, L)) { syswrite(S, "bye"); shutdown(S, 1); sysread(S, $b, 99); print $b, "\\n"; close S }') // prettier-ignore
      const tcp = openTcp(client, 100, { host: '127.0.0.1', port })
      await client.next(({ type }) => type === 'core.tcp.eof', LIMIT_MS)
      assert.equal(tcp.data().toString(), 'bye')
      tcp.send('still heard')
      await waitUntil(() => client.text(1).includes('still heard'), LIMIT_MS)
      tcp.end()
      assert.equal((await tcp.last()).type, 'core.tcp.closed')
    },
  )

for (const way of WAYS)
  test(`a server that does not read blocks the client (by ${way})`, { skip }, async (t) => {
    const client = connect(t, way)
    const port = await serveInside(client, 'accept(S, L); sleep 1000')
    const tcp = openTcp(client, 100, { host: '127.0.0.1', port })
    await tcp.connected()
    const taken = (): number => FLOOD_BYTES + MIB - client.stream.writableLength
    const piece = Buffer.alloc(MIB)
    for (let sent = 0; sent < FLOOD_BYTES; sent += MIB) tcp.send(piece)
    await waitUntilUnchanged(taken, LIMIT_MS)
    assert.ok(taken() < FLOOD_BYTES, `${String(taken() / MIB)} MiB were taken from it`)
  })

for (const way of WAYS)
  test(
    `a broken connection, a disconnect and a failure leave no process in the sandbox (by ${way})`,
    { skip },
    async (t) => {
      const client = connect(t, way)
      const port = await serveInside(client, 'while (accept($s[@s], L)) {}')
      const one = openTcp(client, 100, { host: '127.0.0.1', port })
      await one.connected()
      assert.equal(carriers(), way === 'a process in the sandbox' ? 1 : 0)
      one.close()
      await waitUntil(() => carriers() === 0, LIMIT_MS)
      for (let id = 101; id < 109; id++) openTcp(client, id, { host: '127.0.0.1', port })
      await client.next(({ id, type }) => id > 100 && type === 'core.tcp.connected', LIMIT_MS)
      await client.hangUp()
      assert.equal(carriers(), 0)
    },
  )

test('a reset of the server is reported with the number of the error', { skip }, async (t) => {
  const client = connect(t, 'a socket in its network namespace')
  const port = await serveInside(
    client,
    'accept(S, L); setsockopt(S, SOL_SOCKET, SO_LINGER, pack("ii", 1, 0)); close S; sleep 9',
  )
  const tcp = openTcp(client, 100, { host: '127.0.0.1', port })
  const error = String((await tcp.last()).payload['error'])
  assert.match(error, /^((read|write) TCP stream|connect 127\.0\.0\.1:\d+): .+ \(os error 104\)$/i)
})
