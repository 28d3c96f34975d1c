import assert from 'node:assert/strict'
import { after, before, describe } from 'node:test'
import { SETTINGS } from '../../src/config.ts'
import type { OperatorRanges } from '../../src/domain/network/operator-denials.ts'
import { DESTINATION_GROUPS, type NetworkSpec } from '../../src/domain/spec/spec.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { runCommand } from '../../src/lib/run-command.ts'
import { openSandboxNetworks } from '../../src/worker/network/open-sandbox-networks.ts'
import { makeOwnRanges } from '../../src/worker/network/rules/own-ranges.ts'
import type { SandboxNetworks } from '../../src/worker/network/sandbox-network.ts'
import {
  askUntil,
  ip,
  makeOutsideWorld,
  OUTSIDE,
  OUTSIDE_PORTS,
  RESOLVED,
  startProber,
  type Prober,
} from '../support/network-world.ts'
import { attachInmate, DNS_RULE, networksOptions, networkWith, type Inmate } from '../support/networks.ts'
import { isInOwnNetwork } from '../support/own-network.ts'
import { attack } from '../support/security-attack.ts'
import { waitUntil } from '../support/wait.ts'

/** An address far from the worker's subnets, for the database of the installation. */
const DATABASE = '45.0.0.5'
const FAR = '45.0.0.9'
const NEIGHBOUR = OUTSIDE.private
const CLOSED = [
  OUTSIDE.metadata,
  OUTSIDE.linkLocal,
  OUTSIDE.hostPublic,
  OUTSIDE.hostPrivate,
  NEIGHBOUR,
  OUTSIDE.resolver,
  DATABASE,
] as const

/** What a worker gets from a control plane with the default setting, whose database is at `DATABASE`. */
const DEFAULT_DENIALS: OperatorRanges = {
  deny: [...SETTINGS.networkDeny.fallback.split(','), DATABASE],
  allow: [],
}

/** The most permissive policy that a tenant can write: every rule that could open one of the closed addresses. */
const EVERYTHING: NetworkSpec = networkWith(
  [
    ...CLOSED.map((address) => ({ destination: { cidr: address } })),
    ...DESTINATION_GROUPS.map((group) => ({ destination: { group } })),
    ...['169.254.0.0/16', '10.0.0.0/8', '44.0.0.0/8', '0.0.0.0/0'].map((block) => ({ destination: { cidr: block } })),
    { destination: 'any', direction: 'any' },
  ],
  { default_egress: 'allow', default_ingress: 'allow' },
)

/** The most connections of a sandbox in these tests. */
const BOUND = 50

/** Sends an echo request whose checksum is 80 (RFC 792), and says whether an echo reply comes back within a second. */
const PING = `use Socket; socket(S, PF_INET, SOCK_RAW, 1) or die; send(S, pack('CCnnn', 8, 0, 80, 0xffff - 0x800 - 80, 0), 0,
  pack_sockaddr_in(0, inet_aton($ARGV[0]))); vec($set, fileno(S), 1) = 1; $end = time + 2;
  while (time < $end) { next if !select($ready = $set, undef, undef, 0.5); recv(S, $b, 99, 0);
  if (ord(substr($b, 20)) == 0) { print 'answered'; exit } } print 'silent'`

const CROWD_SIZE = 50
/** Sends UDP packets to many addresses by the device alone (`SO_DONTROUTE`, `SO_BINDTODEVICE`), and one to the gateway. */
const CROWD = `use Socket; socket(S, PF_INET, SOCK_DGRAM, 0) or die; setsockopt(S, SOL_SOCKET, SO_DONTROUTE, 1) or die;
  setsockopt(S, SOL_SOCKET, 25, 'eth0') or die; send(S, 'x', 0, pack_sockaddr_in(9, inet_aton($_))) or die $!
  for (map("$ARGV[0]$_", 1 .. ${String(CROWD_SIZE)}), $ARGV[1])`

/** How many questions of one sandbox the DNS forwarder asks at the same time. */
const DNS_SHARE = 32
const LOOK_UPS = 20
/** How long the stub resolver of glibc waits for an answer. */
const STUB_LIMIT_MS = 5_000

/** Looks a name up several times, one after the other. */
async function lookUp(inmate: Inmate): Promise<{ readonly failed: number; readonly medianMs: number }> {
  const server = inmate.network.resolvers[0] ?? ''
  const times: number[] = []
  let failed = 0
  for (let one = 0; one < LOOK_UPS; one++) {
    const begunMs = systemClock.monotonicMs()
    const answer = await inmate.prober.ask({ kind: 'resolve', server, name: 'a.example.com', timeoutMs: STUB_LIMIT_MS })
    times.push(systemClock.monotonicMs() - begunMs)
    if (answer !== RESOLVED) failed += 1
  }
  return { failed, medianMs: times.toSorted((a, b) => a - b)[LOOK_UPS / 2] ?? Infinity }
}

async function ping({ network }: Inmate, host: string): Promise<string> {
  const args = [`--net=${network.netnsPath}`, 'perl', '-e', PING, host]
  return (await runCommand('nsenter', args, { timeoutMs: 10_000 })).stdout
}

if (isInOwnNetwork(import.meta.filename)) {
  describe('attacks on the network', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks
    let world: Prober

    before(async () => {
      world = await makeOutsideWorld()
      cleanups.defer(() => world.close())
      await ip(
        [DATABASE, FAR].map((address) => `addr add ${address}/32 dev eth0`),
        'outside',
      )
      const host = startProber(null)
      cleanups.defer(() => host.close())
      for (const port of OUTSIDE_PORTS) {
        await host.ask({ kind: 'serveTcp', host: '0.0.0.0', port })
        await host.ask({ kind: 'serveUdp', host: '0.0.0.0', port })
      }
      const ownRanges = makeOwnRanges({ resolvers: [OUTSIDE.resolver], controlPlane: () => [], clock: systemClock })
      networks = await openSandboxNetworks(
        cleanups.use(await networksOptions({ ownRanges, connectionBound: { connections: BOUND, newPerSecond: 10 } })),
      )
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    attack(
      "opens metadata, link-local, the worker's and the database's addresses and the worker's neighbours by a policy",
      { target: 'network', attacker: 'a tenant who writes the policy', finding: 2 },
      async () => {
        await using attacker = await attachInmate(networks, 'attacker', { ...EVERYTHING, operator: DEFAULT_DENIALS })
        assert.equal(await attacker.tcp(FAR), 'connected', 'the policy is in effect')
        const reached = await reachable(attacker)
        assert.deepEqual(reached, [])
        assert.doesNotMatch(await world.ask({ kind: 'received' }), /attack/)
        return {
          tries: CLOSED.length * OUTSIDE_PORTS.length * 2,
          outcome: `none of ${String(CLOSED.length)} addresses answered on ${String(OUTSIDE_PORTS.length)} ports over TCP and UDP`,
        }
      },
    )

    attack(
      'uses the ranges that the operator opened for another organization',
      { target: 'network', attacker: 'a tenant who writes the policy', finding: 2 },
      async () => {
        const opened = ['metadata', 'link_local', NEIGHBOUR, DATABASE]
        const operator = { ...DEFAULT_DENIALS, allow: [...opened, OUTSIDE.hostPrivate] }
        await using allowed = await attachInmate(networks, 'allowed', { ...EVERYTHING, operator })
        await using attacker = await attachInmate(networks, 'stranger', { ...EVERYTHING, operator: DEFAULT_DENIALS })
        const expected = [OUTSIDE.metadata, OUTSIDE.linkLocal, NEIGHBOUR, DATABASE]
        assert.deepEqual(await reachable(allowed), expected, "the worker's own address stays closed")
        assert.deepEqual(await reachable(attacker), [])
        return {
          tries: CLOSED.length,
          outcome: `the organization that they were opened for reaches ${String(expected.length)} addresses, the other none`,
        }
      },
    )

    attack(
      'sends ICMP through a rule for ports, by a checksum that looks like an allowed port',
      { target: 'network', attacker: 'root in a sandbox', finding: null },
      async () => {
        const spec = networkWith([
          { destination: { cidr: FAR }, ports: [{ start: 80, end: 80 }], protocols: ['tcp', 'icmpv4'] },
        ])
        const open = networkWith([{ destination: { cidr: FAR }, protocols: ['icmpv4'] }])
        await using attacker = await attachInmate(networks, 'icmp', spec)
        await using pinging = await attachInmate(networks, 'pings', open)
        assert.equal(await ping(pinging, FAR), 'answered', 'the test can ping')
        assert.equal(await attacker.tcp(FAR), 'connected')
        assert.equal(await ping(attacker, FAR), 'silent')
        return { tries: 1, outcome: 'the crafted echo request got no answer, and TCP to the port works' }
      },
    )

    attack(
      "floods the DNS forwarder with names whose answers never come, to delay other sandboxes' look-ups",
      { target: 'neighbours', attacker: 'root in a sandbox', finding: 9 },
      async () => {
        await using attacker = await attachInmate(networks, 'floods', networkWith([DNS_RULE]))
        await using victim = await attachInmate(networks, 'looks-up', networkWith([DNS_RULE]))
        const quiet = await lookUp(victim)
        const server = attacker.network.resolvers[0] ?? ''
        const flood = attacker.prober.ask({ kind: 'floodDns', server, perSecond: 1_000, forMs: 5_000 })
        await waitUntil(async () => ((await world.ask({ kind: 'received' })).match(/slow/g)?.length ?? 0) >= DNS_SHARE)
        const flooded = await lookUp(victim)
        assert.deepEqual([quiet.failed, flooded.failed], [0, 0], 'every look-up was answered')
        const limitMs = Math.max(10 * quiet.medianMs, 100)
        assert.ok(flooded.medianMs < limitMs, `${String(flooded.medianMs)} ms, quiet ${String(quiet.medianMs)} ms`)
        return {
          tries: Number(await flood),
          outcome: `a neighbour's ${String(LOOK_UPS)} look-ups were answered: median ${flooded.medianMs.toFixed(1)} ms, and ${quiet.medianMs.toFixed(1)} ms without the flood`,
        }
      },
    )

    attack(
      "fills the kernel's connection table with TCP connections, UDP flows, echo requests and DNS queries",
      { target: 'neighbours', attacker: 'root in a sandbox, with the most permissive policy', finding: 12 },
      async () => {
        await using attacker = await attachInmate(networks, 'connects', { ...EVERYTHING, max_connections: 1_000_000 })
        await using victim = await attachInmate(networks, 'neighbour', networkWith([{ destination: 'any' }]))
        const hold = { kind: 'tcp', host: FAR, port: 80, hold: true } as const
        const held = await Promise.all(Array.from({ length: 3 * BOUND }, () => attacker.prober.ask(hold)))
        assert.equal(held.filter((answer) => answer === 'connected').length, BOUND)
        const before = await trackedConnections()
        const flows = Array.from({ length: BOUND }, () => attacker.prober.ask({ kind: 'udp', host: FAR, port: 80 }))
        assert.ok(!(await Promise.all(flows)).includes('answered'), 'UDP counts too')
        assert.equal(await ping(attacker, FAR), 'silent', 'ICMP counts too')
        const server = attacker.network.resolvers[0] ?? ''
        const names = Array.from({ length: 4 * BOUND }, (_, at) => `n${String(at)}.example.com`)
        await Promise.all(names.map((name) => attacker.prober.ask({ kind: 'resolve', server, name })))
        const added = (await trackedConnections()) - before
        assert.ok(added <= BOUND, `${String(added)} more entries, for DNS`)
        assert.equal(await victim.tcp(FAR), 'connected', 'a neighbour still connects')
        await attacker.prober.ask({ kind: 'release' })
        assert.equal(await askUntil(attacker.prober, { ...hold, hold: false }, 'connected'), 'connected')
        return {
          tries: 4 * BOUND + 1 + names.length,
          outcome: `${String(BOUND)} connections were open at a time, and ${String(added)} entries for DNS; a neighbour connected`,
        }
      },
    )

    attack(
      "fills the kernel's connection table with connections that it closes at once",
      { target: 'neighbours', attacker: 'root in a sandbox, with the most permissive policy', finding: 12 },
      async () => {
        await using attacker = await attachInmate(networks, 'closes', EVERYTHING)
        const tries = 600
        const ask = { kind: 'tcp', host: FAR, port: 80, timeoutMs: 100 } as const
        const before = await trackedConnections()
        for (let at = 0; at < tries; at += 25)
          await Promise.all(Array.from({ length: 25 }, () => attacker.prober.ask(ask)))
        const added = (await trackedConnections()) - before
        assert.ok(added < tries / 2, `${String(added)} entries`)
        return { tries, outcome: `${String(added)} entries were made` }
      },
    )

    attack(
      "fills the machine's table of neighbours by packets to addresses that it takes for neighbours of its device",
      { target: 'neighbours', attacker: 'root in a sandbox', finding: null },
      async () => {
        const device = { ipv4_address: '172.16.0.2', ipv4_pool: null, mac: [2, 0, 0, 0, 0, 9], mtu: null }
        for (const network of [EVERYTHING, { ...EVERYTHING, interface: device }]) {
          await using attacker = await attachInmate(networks, 'crowds', network)
          const [host, gateway = ''] = [FAR.replace(/\d+$/, ''), attacker.network.resolvers[0]]
          await runCommand('nsenter', [`--net=${attacker.network.netnsPath}`, 'perl', '-e', CROWD, host, gateway], {
            timeoutMs: 10_000,
          })
          assert.deepEqual(await neighboursOf(attacker), [gateway])
          assert.equal(await attacker.tcp(FAR), 'connected', 'packets by the gateway still arrive')
        }
        return { tries: 2 * CROWD_SIZE, outcome: 'no address but that of the gateway became a neighbour' }
      },
    )

    /** The neighbours in the namespace of an inmate that the kernel may remember: not the fixed ones of the loopback device. */
    async function neighboursOf({ network }: Inmate): Promise<readonly string[]> {
      const args = [`--net=${network.netnsPath}`, 'ip', '-4', 'neigh', 'show', 'dev', 'eth0', 'nud', 'all']
      const { stdout } = await runCommand('nsenter', args, { timeoutMs: 5_000 })
      return stdout.split('\n').flatMap((line) => line.split(' ')[0] || [])
    }

    /** How many connections the router tracks, of all sandboxes. */
    async function trackedConnections(): Promise<number> {
      const args = ['--net=/run/netns/sy-test-router', 'cat', '/proc/sys/net/netfilter/nf_conntrack_count']
      return Number((await runCommand('nsenter', args, { timeoutMs: 5_000 })).stdout)
    }

    /** The closed addresses that answer an inmate on any port. */
    async function reachable(inmate: Inmate): Promise<readonly string[]> {
      const found: string[] = []
      for (const host of CLOSED) {
        const asks = OUTSIDE_PORTS.flatMap((port) => [
          inmate.prober.ask({ kind: 'tcp', host, port, timeoutMs: 400 }),
          inmate.prober.ask({ kind: 'udp', host, port, text: 'attack' }),
        ])
        const answers = await Promise.all(asks)
        if (answers.some((answer) => answer === 'connected' || answer === 'answered')) found.push(host)
      }
      return found
    }
  })
}
