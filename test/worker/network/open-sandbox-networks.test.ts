import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import {
  askUntil,
  ip,
  makeOutsideWorld,
  OUTSIDE,
  RESOLVED,
  startProber,
  type Prober,
} from '../../support/network-world.ts'
import {
  NO_DENIALS,
  attachInmate,
  DEFAULT_NETWORK,
  DNS_RULE,
  networksOptions,
  networkWith,
  type Inmate,
} from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'
import { attack } from '../../support/security-attack.ts'

const CONTROL_PLANE_PORT = 7070
const REFUSED = 'EHOSTUNREACH'
/** A DNS query (RFC 1035) for the address of a.example.com. */
const QUERY_HEX = '1234010000010000000000000161076578616d706c6503636f6d0000010001'

const FACTS = {
  target: 'network',
  attacker: 'root in a sandbox whose policy allows everything',
  finding: null,
} as const

if (isInOwnNetwork(import.meta.filename)) {
  describe('the network of a sandbox', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks
    let world: Prober
    let host: Prober

    before(async () => {
      world = await makeOutsideWorld()
      cleanups.defer(() => world.close())
      host = startProber(null)
      cleanups.defer(() => host.close())
      await host.ask({ kind: 'serveTcp', host: '0.0.0.0', port: CONTROL_PLANE_PORT })
      networks = await openSandboxNetworks(cleanups.use(await networksOptions()))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('the default policy allows public addresses over TCP and UDP, and name resolution', async () => {
      await using inmate = await attachInmate(networks, 'default-open', DEFAULT_NETWORK)
      const server = inmate.network.resolvers[0] ?? ''
      assert.equal(await inmate.tcp(OUTSIDE.public), 'connected')
      assert.equal(await inmate.prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 443 }), 'answered')
      assert.equal(await inmate.prober.ask({ kind: 'resolve', server, name: 'a.example.com' }), RESOLVED)
      const overTcp = await inmate.prober.ask({ kind: 'dnsOverTcp', server, queryHex: QUERY_HEX })
      assert.ok(overTcp.endsWith(Buffer.from(RESOLVED.split('.').map(Number)).toString('hex')), overTcp)
    })

    test('the default policy refuses private, link-local, metadata, shared, reserved and multicast addresses', async () => {
      await using inmate = await attachInmate(networks, 'default-closed', DEFAULT_NETWORK)
      const addresses = [
        OUTSIDE.private,
        OUTSIDE.linkLocal,
        OUTSIDE.metadata,
        '100.100.100.200',
        '198.18.0.1',
        '240.0.0.1',
      ]
      assert.deepEqual(
        await Promise.all(addresses.map((address) => inmate.tcp(address))),
        addresses.map(() => REFUSED),
      )
      await inmate.prober.ask({ kind: 'udp', host: '224.0.0.1', port: 80, text: 'multicast' })
      await inmate.prober.ask({ kind: 'udp', host: OUTSIDE.private, port: 80, text: 'private' })
      assert.doesNotMatch(await world.ask({ kind: 'received' }), /multicast|private/)
    })

    attack('opens a port of the host, at its addresses or as a published port', FACTS, async () => {
      await using inmate = await attachInmate(networks, 'host', networkWith([], { default_egress: 'allow' }))
      await runCommand('nft', ['-f', '-'], { timeoutMs: 5_000, input: PUBLISHED_PORT })
      const uplink = '10.209.0.1'
      const gateway = inmate.network.resolvers[0] ?? ''
      const tries = [OUTSIDE.hostPublic, OUTSIDE.hostPrivate, uplink, gateway, '10.209.0.2'].map((address) =>
        inmate.tcp(address, CONTROL_PLANE_PORT),
      )
      const results = await Promise.all([...tries, inmate.tcp(OUTSIDE.hostPublic, 7071), inmate.tcp(uplink, 53)])
      assert.ok(
        results.every((result) => result === 'timeout' || result === REFUSED),
        results.join(),
      )
      assert.equal(
        await inmate.tcp('127.0.0.1', CONTROL_PLANE_PORT),
        'ECONNREFUSED',
        "its loopback is the sandbox's own",
      )
      assert.equal(await host.ask({ kind: 'tcp', host: OUTSIDE.hostPublic, port: CONTROL_PLANE_PORT }), 'connected')
      return { tries: results.length, outcome: `none of ${String(results.length)} connections was accepted` }
    })

    attack('opens another sandbox, its gateway, or an address that the operator denies', FACTS, async () => {
      const open = networkWith([{ destination: { cidr: '0.0.0.0/0' } }, { destination: { cidr: OUTSIDE.hardDenied } }])
      await using one = await attachInmate(networks, 'neighbour-1', open)
      await using other = await attachInmate(networks, 'neighbour-2', open)
      await other.prober.ask({ kind: 'serveTcp', host: '0.0.0.0', port: 80 })
      assert.equal(await one.tcp(other.network.ipv4 ?? ''), REFUSED)
      assert.equal(await one.tcp(other.network.resolvers[0] ?? '', 53), REFUSED)
      assert.equal(await one.tcp(OUTSIDE.hardDenied), REFUSED)
      assert.equal(await one.tcp(OUTSIDE.private), 'connected')
      return { tries: 3, outcome: 'each connection was refused; one that the policy allows was accepted' }
    })

    test('the metadata address opens only to a rule that names it', async () => {
      await using wide = await attachInmate(networks, 'metadata-wide', networkWith([{ destination: 'any' }]))
      assert.deepEqual([await wide.tcp(OUTSIDE.metadata), await wide.tcp(OUTSIDE.linkLocal)], [REFUSED, 'connected'])
      for (const destination of [{ group: 'metadata' }, { cidr: OUTSIDE.metadata }] as const) {
        await using named = await attachInmate(networks, 'metadata-named', networkWith([{ destination }]))
        assert.deepEqual(
          [await named.tcp(OUTSIDE.metadata), await named.tcp(OUTSIDE.linkLocal)],
          ['connected', REFUSED],
        )
      }
    })

    test('the first rule that matches decides: a denied block before a wider one, ports and protocols included', async () => {
      const spec = networkWith([
        { destination: { cidr: OUTSIDE.otherPublic }, action: 'deny' },
        {
          destination: { cidr: '44.0.113.0/24' },
          ports: [
            { start: 80, end: 80 },
            { start: 400, end: 500 },
          ],
          protocols: ['tcp'],
        },
        {
          destination: { cidr: '44.0.113.0/24' },
          ports: [
            { start: 8443, end: 8443 },
            { start: 8000, end: 9000 },
          ],
        },
      ])
      await using inmate = await attachInmate(networks, 'ordered', spec)
      assert.equal(await inmate.tcp(OUTSIDE.otherPublic), REFUSED)
      assert.deepEqual(
        [
          await inmate.tcp(OUTSIDE.public, 80),
          await inmate.tcp(OUTSIDE.public, 443),
          await inmate.tcp(OUTSIDE.public, 22),
        ],
        ['connected', 'connected', REFUSED],
      )
      assert.notEqual(await inmate.prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 80 }), 'answered')
      assert.equal(await inmate.prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 8443 }), 'answered')
    })

    test('without a rule for DNS no name is resolved', async () => {
      await using inmate = await attachInmate(networks, 'no-dns', networkWith([{ destination: { group: 'public' } }]))
      const server = inmate.network.resolvers[0] ?? ''
      assert.notEqual(await inmate.prober.ask({ kind: 'resolve', server, name: 'a.example.com' }), RESOLVED)
      assert.equal(await inmate.tcp(server, 53), REFUSED)
    })

    test('a private address is refused for a public name, and allowed for a name of private use', async () => {
      await using inmate = await attachInmate(networks, 'rebind', networkWith([DNS_RULE]))
      const server = inmate.network.resolvers[0] ?? ''
      assert.equal(await inmate.prober.ask({ kind: 'resolve', server, name: 'rebind.example.com' }), 'EREFUSED')
      assert.equal(await inmate.prober.ask({ kind: 'resolve', server, name: 'rebind.internal' }), OUTSIDE.private)
    })

    test('only sandboxes reach the DNS forwarder, and nothing outside reaches a sandbox', async () => {
      await using inmate = await attachInmate(networks, 'unreachable', networkWith([], { default_ingress: 'allow' }))
      await inmate.prober.ask({ kind: 'serveTcp', host: '0.0.0.0', port: 80 })
      const ask = { kind: 'resolve', server: '10.209.0.1', name: 'a.example.com' } as const
      assert.deepEqual([await world.ask(ask), await host.ask(ask)], ['ETIMEOUT', 'ETIMEOUT'])
      assert.notEqual(await world.ask({ kind: 'tcp', host: inmate.network.ipv4 ?? '', port: 80 }), 'connected')
    })

    test('connections beyond max_connections are refused to this sandbox alone, and DNS does not count', async () => {
      await using limited = await attachInmate(networks, 'limited', { ...DEFAULT_NETWORK, max_connections: 2 })
      await using other = await attachInmate(networks, 'unlimited', DEFAULT_NETWORK)
      const hold = { kind: 'tcp', host: OUTSIDE.public, port: 80, hold: true } as const
      assert.deepEqual(await Promise.all([limited.prober.ask(hold), limited.prober.ask(hold)]), [
        'connected',
        'connected',
      ])
      assert.equal(await limited.tcp(OUTSIDE.public), 'timeout')
      const server = limited.network.resolvers[0] ?? ''
      assert.equal(await limited.prober.ask({ kind: 'resolve', server, name: 'a.example.com' }), RESOLVED)
      assert.equal(await other.tcp(OUTSIDE.public), 'connected')
      assert.equal(await limited.prober.ask({ kind: 'echo' }), 'echoed')
      await limited.prober.ask({ kind: 'release' })
      assert.equal(
        await askUntil(limited.prober, hold, 'connected'),
        'connected',
        'a closed connection allows a new one',
      )
    })

    test('max_udp_connections limits UDP alone, max_connections then the others, and 0 asks for no limit', async () => {
      const udp = (box: Inmate) => box.prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 443 })
      const hold = { kind: 'tcp', host: OUTSIDE.public, port: 80, hold: true } as const
      const limits = { ...DEFAULT_NETWORK, max_connections: 1, max_udp_connections: 2 }
      await using limited = await attachInmate(networks, 'udp-limited', limits)
      assert.deepEqual([await udp(limited), await udp(limited)], ['answered', 'answered'])
      assert.notEqual(await udp(limited), 'answered')
      assert.equal(await limited.prober.ask(hold), 'connected')
      assert.equal(await limited.tcp(OUTSIDE.public), 'timeout')
      await using free = await attachInmate(networks, 'zero', { ...limits, max_connections: 0, max_udp_connections: 0 })
      assert.deepEqual([await udp(free), await free.tcp(OUTSIDE.public)], ['answered', 'connected'])
    })

    test('a sandbox shows the address, MAC and MTU that were asked for, also beside another with the same ones', async () => {
      const shown = { ipv4_address: '172.16.0.2', ipv4_pool: null, mac: [2, 0, 0, 0, 0, 9], mtu: 1_400 }
      await using one = await attachInmate(networks, 'shown-1', { ...DEFAULT_NETWORK, interface: shown })
      await using other = await attachInmate(networks, 'shown-2', { ...DEFAULT_NETWORK, interface: shown })
      assert.equal(one.network.ipv4, '172.16.0.2')
      for (const box of [one, other]) {
        const server = box.network.resolvers[0] ?? ''
        assert.equal(await box.tcp(OUTSIDE.public), 'connected')
        assert.equal(await box.prober.ask({ kind: 'udp', host: OUTSIDE.public, port: 443 }), 'answered')
        assert.equal(await box.prober.ask({ kind: 'resolve', server, name: 'a.example.com' }), RESOLVED)
        assert.equal(await box.tcp(OUTSIDE.private), 'ECONNREFUSED', 'a refusal is known at once')
      }
      const namespace = one.network.netnsPath.split('/').at(-1) ?? ''
      const { stdout } = await runCommand('ip', ['-n', namespace, 'addr', 'show', 'dev', 'eth0'], { timeoutMs: 5_000 })
      assert.match(stdout, /mtu 1400[^]*02:00:00:00:00:09[^]*172\.16\.0\.2\/32/)
      const routed = await runCommand('ip', ['-n', namespace, 'route', 'get', OUTSIDE.public], { timeoutMs: 5_000 })
      assert.match(routed.stdout, /src 172\.16\.0\.2/)
      const own = { ...DEFAULT_NETWORK, interface: { ...shown, ipv4_address: '10.209.0.77' } }
      await assert.rejects(attachInmate(networks, 'shown-3', own), /network\.interface\.ipv4_address/)
    })

    attack('sends packets with the source address of another sandbox', FACTS, async () => {
      await using inmate = await attachInmate(networks, 'spoofer', DEFAULT_NETWORK)
      await ip(['addr add 10.209.9.9/32 dev eth0'], inmate.network.netnsPath.split('/').at(-1))
      const ask = { kind: 'udp', host: OUTSIDE.public, port: 80 } as const
      await inmate.prober.ask({ ...ask, from: '10.209.9.9', text: 'spoofed' })
      await inmate.prober.ask({ ...ask, text: 'honest' })
      const received = await world.ask({ kind: 'received' })
      assert.match(received, /honest/)
      assert.doesNotMatch(received, /spoofed/)
      return { tries: 1, outcome: 'the packet was dropped; an honest one arrived' }
    })

    attack('leaves the sandbox over IPv6 with an address of its own choice', FACTS, async () => {
      await using inmate = await attachInmate(networks, 'six', networkWith([], { default_egress: 'allow' }))
      const namespace = inmate.network.netnsPath.split('/').at(-1) ?? ''
      const slot = namespace.split('-').at(-1) ?? ''
      await ip([`addr add fd99::1/64 dev v${slot} nodad`], 'sy-test-router')
      await ip(['addr add fd99::2/64 dev eth0 nodad'], namespace)
      const router = startProber('/run/netns/sy-test-router')
      try {
        await router.ask({ kind: 'serveUdp', host: '::', port: 80 })
        await inmate.prober.ask({ kind: 'udp', host: 'fd99::1', port: 80, text: 'over six' })
        assert.equal(await router.ask({ kind: 'received' }), '')
      } finally {
        await router.close()
      }
      return { tries: 1, outcome: 'nothing arrived at the router' }
    })

    test('a network that is off has a loopback device and nothing else', async () => {
      await using inmate = await attachInmate(networks, 'off', { ...DEFAULT_NETWORK, enabled: false })
      assert.deepEqual([inmate.network.ipv4, inmate.network.resolvers], [null, []])
      assert.equal(await inmate.tcp(OUTSIDE.public), 'ENETUNREACH')
      await inmate.prober.ask({ kind: 'serveTcp', host: '127.0.0.1', port: 80 })
      assert.equal(await inmate.tcp('127.0.0.1'), 'connected')
    })

    test('attaching again keeps connections; a changed policy or the end of the run ends them', async () => {
      await using inmate = await attachInmate(networks, 'flows', DEFAULT_NETWORK)
      const hold = { kind: 'tcp', host: OUTSIDE.public, port: 80, hold: true } as const
      assert.equal(await inmate.prober.ask(hold), 'connected')
      assert.deepEqual(await networks.attach(inmate.run, DEFAULT_NETWORK, NO_DENIALS), inmate.network)
      assert.equal(await inmate.prober.ask({ kind: 'echo' }), 'echoed')
      await networks.attach(inmate.run, networkWith([{ destination: { group: 'public' } }]), NO_DENIALS)
      assert.notEqual(
        await inmate.prober.ask({ kind: 'echo' }),
        'echoed',
        'also a connection that the new policy allows',
      )
      assert.equal(await inmate.tcp(OUTSIDE.public), 'connected')
      await networks.attach(inmate.run, networkWith([{ destination: { cidr: OUTSIDE.otherPublic } }]), NO_DENIALS)
      assert.deepEqual(
        [await inmate.tcp(OUTSIDE.public), await inmate.tcp(OUTSIDE.otherPublic)],
        [REFUSED, 'connected'],
      )
      await networks.detach(inmate.run)
      assert.notEqual(await inmate.tcp(OUTSIDE.otherPublic), 'connected')
    })
  })
}

/** Rules with which a container engine publishes a port: they translate an address of the host to another address. */
const PUBLISHED_PORT = `table ip engine {
  chain publish { type nat hook prerouting priority dstnat; tcp dport 7071 dnat to ${OUTSIDE.private}:80; }
}`
