import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { buffer, text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import type { RunId } from '../../../src/domain/ids.ts'
import type { PublishedPort } from '../../../src/domain/spec/published-ports.ts'
import type { NetworkSpec, Rule } from '../../../src/domain/spec/spec.ts'
import { parsePublish } from '../../../src/domain/workers/publishing.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { errorCodeOf } from '../../../src/lib/error-code.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { attachNamedInmate, makeNamedWorld, startHost, type NamedHost } from '../../support/named-world.ts'
import { OUTSIDE } from '../../support/network-world.ts'
import { networksOptions, networkWith, NO_DENIALS } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

const RANGES = parsePublish('127.0.0.1:20000-20999,0.0.0.0:21000-21999,[::1]:22000')

const WORDS = 'words to be sent back'
/** A network whose policy lets everybody in, and the sandbox nowhere. */
const OPEN = networkWith([], { default_ingress: 'allow' })

if (isInOwnNetwork(import.meta.filename)) {
  describe('published ports', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks
    let outside: NamedHost

    before(async () => {
      outside = cleanups.use(await makeNamedWorld({})).outside
      networks = await openSandboxNetworks(cleanups.use(await networksOptions({ publish: RANGES ?? [] })))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('a client of the machine reaches a TCP port of the sandbox, and no other port of it', async () => {
      await using box = await attach('tcp', [
        { guest_port: 80 },
        { guest_port: 80, host_bind: '::1', host_port: 22_000 },
      ])
      const [first, second] = box.published
      assert.ok(first !== undefined && first.host_port >= 20_000 && first.host_port <= 21_999, JSON.stringify(first))
      assert.equal(second?.host_port, 22_000)
      assert.equal(await echo('127.0.0.1', first.host_port), WORDS)
      assert.equal(await echo('::1', 22_000), WORDS)
      await box.host.ask({ kind: 'serveEcho', port: 8_080 })
      assert.equal(await outcome(box.address, 8_080), 'timeout', 'a port that is not published')
    })

    test('an account of the machine can not go round the policy by the address of the sandbox', async () => {
      await using box = await attach('direct', [{ guest_port: 80 }])
      const reach = (limitSecs: number, account: object) =>
        spawnSync('timeout', [String(limitSecs), 'bash', '-c', `exec 3<>/dev/tcp/${box.address}/80`], account).status
      assert.equal(reach(30, {}), 0, 'the worker connects this way')
      assert.notEqual(reach(1, { uid: 65_534, gid: 65_534 }), 0)
    })

    test('the policy of the sandbox judges the real address of a client', async () => {
      const rules = [{ direction: 'ingress', destination: { cidr: OUTSIDE.private } }] as const
      await using box = await attach('judged', [{ guest_port: 80, host_bind: '0.0.0.0', host_port: 21_000 }], { rules })
      const hex = Buffer.from(WORDS).toString('hex')
      assert.equal(await outside.ask({ kind: 'write', address: OUTSIDE.hostPrivate, port: 21_000, hex }), hex)
      assert.equal(await outcome('127.0.0.1', 21_000), 'ECONNRESET')
      assert.equal(box.published.length, 1)
    })

    test('a sandbox that answers its clients connects to nobody that its policy denies', async () => {
      await using box = await attach('out', [{ guest_port: 80 }])
      assert.equal(
        await box.host.ask({ kind: 'write', address: OUTSIDE.hostPrivate, port: 80, hex: '00' }),
        'EHOSTUNREACH',
      )
      assert.equal(await echo('127.0.0.1', box.published[0]?.host_port ?? 0), WORDS)
    })

    test('datagrams reach a UDP port, and the replies their own client', async () => {
      await using box = await attach('udp', [{ guest_port: 9_000, protocol: 'udp' }])
      await box.host.ask({ kind: 'serveDatagrams', address: box.address, port: 9_000 })
      const port = box.published[0]?.host_port ?? 0
      assert.deepEqual(await Promise.all(['one', 'two'].map((word) => datagram(port, word))), ['one', 'two'])
    })

    test('megabytes pass in both directions, and each side ends its own', async () => {
      await using box = await attach('bulk', [{ guest_port: 9_100 }])
      await box.host.ask({ kind: 'serveEcho', port: 9_100 })
      const socket = connect({ host: '127.0.0.1', port: box.published[0]?.host_port ?? 0, allowHalfOpen: true })
      const sent = Buffer.alloc(8 * 1024 * 1024, 'published ')
      socket.end(sent)
      assert.ok((await buffer(socket)).equals(sent))
    })

    test('a sandbox that shows another address has its ports too', async () => {
      const device = { ipv4_address: '172.16.5.2', ipv4_pool: null, mac: null, mtu: null }
      await using box = await attach('shown', [{ guest_port: 80 }], {}, { interface: device })
      assert.equal(await echo('127.0.0.1', box.published[0]?.host_port ?? 0), WORDS)
    })

    test('a port that another program has is refused by name, and nothing of the sandbox stays open', async () => {
      const other = createServer().listen(20_500, '127.0.0.1')
      await once(other, 'listening')
      const ports = [
        { guest_port: 80, host_port: 20_501 },
        { guest_port: 81, host_port: 20_500 },
      ].map(complete)
      await assert.rejects(networks.attach('clash' as RunId, { ...OPEN, ports }, NO_DENIALS), {
        message: /^network\.ports\[1\]\.host_port: 20500: another program of the machine has it/,
      })
      assert.equal(await outcome('127.0.0.1', 20_501), 'ECONNREFUSED')
      await networks.detach('clash' as RunId)
      const foreign = [complete({ guest_port: 80, host_bind: '127.0.0.1', host_port: 8 })]
      await assert.rejects(
        networks.attach('foreign' as RunId, { ...OPEN, ports: foreign }, NO_DENIALS),
        /SANDYARD_PUBLISH/,
      )
      await networks.detach('foreign' as RunId)
      other.close()
    })

    test('a restarted worker opens the same ports again, and they end with the sandbox', async () => {
      await using options = await networksOptions({ namePrefix: 'again', addressPool: '10.210.0.0/16' })
      const first = await openSandboxNetworks(options)
      const kept = 'kept' as RunId
      const attached = await first.attach(kept, { ...OPEN, ports: [complete({ guest_port: 80 })] }, NO_DENIALS)
      const port = attached.published[0]?.host_port ?? 0
      const host = startHost(attached.netnsPath)
      await host.ask({ kind: 'serveEcho', port: 80 })
      const idle = connect(port, '127.0.0.1')
      await once(idle, 'connect')
      const cut = new Promise((resolve) => idle.on('error', resolve))
      await first.close()
      await cut
      assert.equal(await outcome('127.0.0.1', port), 'ECONNREFUSED')
      const other = createServer().listen(port, '127.0.0.1')
      await once(other, 'listening')
      const without = await openSandboxNetworks({ ...options, log: makeLog('silent') })
      await without.close() // the worker starts although another program has the port
      await new Promise((resolve) => other.close(resolve))
      const second = await openSandboxNetworks(options)
      assert.equal(await echo('127.0.0.1', port), WORDS)
      await host.close()
      await second.detach(kept)
      assert.equal(await outcome('127.0.0.1', port), 'ECONNREFUSED')
      await second.close()
    })

    async function attach(
      name: string,
      ports: readonly (Partial<PublishedPort> & Pick<PublishedPort, 'guest_port'>)[],
      { rules }: { readonly rules?: readonly Partial<Rule>[] } = {},
      changes: Partial<NetworkSpec> = {},
    ) {
      const base = rules === undefined ? OPEN : networkWith(rules)
      const box = await attachNamedInmate(networks, name, { ...base, ...changes, ports: ports.map(complete) })
      await box.host.ask({ kind: 'serveEcho', port: 80 })
      return box
    }
  })
}

function complete(port: Partial<PublishedPort> & Pick<PublishedPort, 'guest_port'>): PublishedPort {
  return { host_bind: '127.0.0.1', host_port: 0, protocol: 'tcp', ...port }
}

/** Sends words and returns what comes back. */
async function echo(host: string, port: number): Promise<string> {
  const socket = connect({ host, port, allowHalfOpen: true })
  socket.end(WORDS)
  return await text(socket)
}

/** How a connection ends: `open` if it is still open after a moment, or an error code. */
async function outcome(host: string, port: number): Promise<string> {
  const socket = connect({ host, port })
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(1_000) })
    await once(socket, 'close', { signal: AbortSignal.timeout(1_000) })
    return 'closed'
  } catch (error) {
    return error instanceof Error && error.name === 'AbortError'
      ? socket.connecting
        ? 'timeout'
        : 'open'
      : String(errorCodeOf(error))
  } finally {
    socket.destroy()
  }
}

async function datagram(port: number, word: string): Promise<string> {
  const socket = createSocket('udp4')
  try {
    socket.send(word, port, '127.0.0.1')
    const [reply] = (await once(socket, 'message', { signal: AbortSignal.timeout(2_000) })) as [Buffer]
    return reply.toString()
  } finally {
    socket.close()
  }
}
