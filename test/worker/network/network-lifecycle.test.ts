import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { systemRandom } from '../../../src/lib/random.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { removeInstallationNetworks } from '../../../src/worker/network/open-router.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import { probeNetwork } from '../../../src/worker/network/probe-network.ts'
import { asId, type RunId } from '../../../src/domain/ids.ts'
import { askUntil, ip, makeOutsideWorld, OUTSIDE, startProber, type Prober } from '../../support/network-world.ts'
import { NO_DENIALS, attachInmate, DEFAULT_NETWORK, networksOptions } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'

if (isInOwnNetwork(import.meta.filename)) {
  describe('the networks of an installation', () => {
    let world: Prober
    before(async () => {
      world = await makeOutsideWorld()
    })
    after(() => world.close())

    test('a machine that the probe accepts has all abilities, and the probe leaves nothing behind', async () => {
      const untouched = await traces()
      assert.deepEqual(await probeNetwork(systemRandom), {
        ok: true,
        missing: [],
        abilities: [
          'network_off',
          'network_policy',
          'network_max_connections',
          'network_max_udp_connections',
          'network_domains',
        ],
      })
      assert.deepEqual(await traces(), untouched)
    })

    test('once the last run is detached and the networks are closed, nothing is left on the machine', async () => {
      const untouched = await traces()
      await using options = await networksOptions({ prewarmCount: 3 })
      const networks = await openSandboxNetworks(options)
      await attachInmate(networks, 'one', DEFAULT_NETWORK).then((inmate) => inmate[Symbol.asyncDispose]())
      await attachInmate(networks, 'off', { ...DEFAULT_NETWORK, enabled: false }).then((inmate) =>
        inmate[Symbol.asyncDispose](),
      )
      await networks.detach(asId<RunId>('never-attached'))
      assert.deepEqual(await networks.list(), [])
      const rules = await runCommand('nsenter', ['--net=/run/netns/sy-test-router', 'nft', 'list', 'ruleset'], LIMIT)
      assert.doesNotMatch(rules.stdout, /judge_|pass_|elements/)
      await networks.close()
      assert.deepEqual(await traces(), untouched)
      assert.equal(existsSync(options.dir), false)
    })

    test('a restarted worker adopts the networks of runs, with their connections', async () => {
      await using options = await networksOptions({ prewarmCount: 2 })
      const first = await openSandboxNetworks(options)
      const run = asId<RunId>('adopted')
      const network = await first.attach(run, DEFAULT_NETWORK, NO_DENIALS)
      const off = await first.attach(asId<RunId>('adopted-off'), { ...DEFAULT_NETWORK, enabled: false }, NO_DENIALS)
      const prober = startProber(network.netnsPath)
      assert.equal(await prober.ask({ kind: 'tcp', host: OUTSIDE.public, port: 80, hold: true }), 'connected')
      await first.close()
      assert.deepEqual(
        namespaces(),
        [network, off].map(({ netnsPath }) => netnsPath.slice('/run/netns/'.length)),
      )

      const second = await openSandboxNetworks(options)
      assert.deepEqual((await second.list()).toSorted(), ['adopted', 'adopted-off'])
      assert.equal(await prober.ask({ kind: 'echo' }), 'echoed')
      assert.deepEqual(await second.attach(run, DEFAULT_NETWORK, NO_DENIALS), network)
      assert.equal(await prober.ask({ kind: 'echo' }), 'echoed')
      await using other = await attachInmate(second, 'other', DEFAULT_NETWORK)
      assert.notEqual(other.network.ipv4, network.ipv4)
      await prober.close()
      await second.detach(run)
      await second.detach(asId<RunId>('adopted-off'))
      assert.deepEqual(await second.list(), [other.run])
      await other[Symbol.asyncDispose]()
      await second.close()
    })

    test('a run whose namespace was removed by someone else is not listed, and attaching creates a new one', async () => {
      await using options = await networksOptions()
      const networks = await openSandboxNetworks(options)
      const run = asId<RunId>('robbed')
      const network = await networks.attach(run, DEFAULT_NETWORK, NO_DENIALS)
      await ip([`netns del ${network.netnsPath.slice('/run/netns/'.length)}`])
      assert.deepEqual(await networks.list(), [])
      await using again = await attachInmate(networks, run, DEFAULT_NETWORK)
      assert.equal(await again.tcp(OUTSIDE.public), 'connected')
      await again[Symbol.asyncDispose]()
      await networks.close()
    })

    test('two installations on one machine have separate address pools, and neither reaches the other', async () => {
      await using oneOptions = await networksOptions({ namePrefix: 'one' })
      await using twoOptions = await networksOptions({ namePrefix: 'two' })
      const one = await openSandboxNetworks(oneOptions)
      const two = await openSandboxNetworks(twoOptions)
      const open = {
        ...DEFAULT_NETWORK,
        policy: { default_egress: 'allow', default_ingress: 'allow', rules: [] },
      } as const
      await using inOne = await attachInmate(one, 'same-name', open)
      await using inTwo = await attachInmate(two, 'same-name', open)
      assert.match(inTwo.network.ipv4 ?? '', /^10\.210\./)
      await inTwo.prober.ask({ kind: 'serveTcp', host: '0.0.0.0', port: 80 })
      assert.deepEqual([await inOne.tcp(OUTSIDE.public), await inTwo.tcp(OUTSIDE.public)], ['connected', 'connected'])
      assert.notEqual(await inOne.tcp(inTwo.network.ipv4 ?? ''), 'connected')
      await inTwo[Symbol.asyncDispose]()
      await two.close()
      assert.equal(await inOne.tcp(OUTSIDE.public), 'connected')
      await inOne[Symbol.asyncDispose]()
      await one.close()
    })

    test('a host that did not forward before forwards for sandboxes alone', async () => {
      await ip([
        'netns add aside',
        'link add w1 type veth peer name eth0 netns aside',
        'addr add 10.77.0.1/24 dev w1',
        'link set w1 up',
      ])
      await ip(['addr add 10.77.0.2/24 dev eth0', 'link set eth0 up', 'route add default via 10.77.0.1'], 'aside')
      const aside = startProber('/run/netns/aside')
      await aside.ask({ kind: 'serveTcp', host: '0.0.0.0', port: 80 })
      await using options = await networksOptions()
      const networks = await openSandboxNetworks(options)
      const wide = {
        ...DEFAULT_NETWORK,
        policy: { default_egress: 'allow', default_ingress: 'deny', rules: [] },
      } as const
      await using inmate = await attachInmate(networks, 'wide', wide)
      const between = { kind: 'tcp', host: '10.77.0.2', port: 80 } as const
      assert.equal(await inmate.tcp('10.77.0.2'), 'connected')
      assert.equal(await world.ask(between), 'timeout')
      assert.equal(readFileSync('/proc/sys/net/ipv4/conf/all/forwarding', 'utf8').trim(), '0')
      await inmate[Symbol.asyncDispose]()
      await networks.close()

      await runCommand('sh', ['-c', 'echo 1 > /proc/sys/net/ipv4/ip_forward'], LIMIT)
      const onRouter = await openSandboxNetworks(options)
      assert.equal(await askUntil(world, between, 'connected'), 'connected', 'a router stays a router')
      await onRouter.close()
      assert.equal(readFileSync('/proc/sys/net/ipv4/ip_forward', 'utf8').trim(), '1')
      await runCommand('sh', ['-c', 'echo 0 > /proc/sys/net/ipv4/ip_forward'], LIMIT)
      await aside.close()
      await ip(['netns del aside'])
    })

    test('an exhausted address pool is an error, and a released slot can be used again', async () => {
      await using options = await networksOptions({ addressPool: '10.222.0.0/29', prewarmCount: 0 })
      await assert.rejects(openSandboxNetworks(options), /IPv4 block/)
      await using small = await networksOptions({ addressPool: '10.222.0.0/28', prewarmCount: 0 })
      const networks = await openSandboxNetworks(small)
      const runs = ['a', 'b', 'c'].map((name) => asId<RunId>(name))
      await Promise.all(runs.map((run) => networks.attach(run, DEFAULT_NETWORK, NO_DENIALS)))
      await assert.rejects(networks.attach(asId<RunId>('d'), DEFAULT_NETWORK, NO_DENIALS), /is exhausted/)
      await networks.detach(asId<RunId>('b'))
      await networks.attach(asId<RunId>('d'), DEFAULT_NETWORK, NO_DENIALS)
      assert.deepEqual((await networks.list()).toSorted(), ['a', 'c', 'd'])
      await networks.close()
      await removeInstallationNetworks(small)
    })

    test('when the records are lost, the networks of runs are removed and the host never keeps forwarding', async () => {
      const untouched = await traces()
      await using lost = await networksOptions()
      const before = await openSandboxNetworks(lost)
      await before.attach(asId<RunId>('lost'), DEFAULT_NETWORK, NO_DENIALS)
      await before.close()
      await using options = await networksOptions()
      const networks = await openSandboxNetworks(options)
      assert.deepEqual(await networks.list(), [])
      await networks.close()
      assert.deepEqual(await traces(), untouched)
    })

    test('removing an installation ends the networks of its runs too', async () => {
      const untouched = await traces()
      await using options = await networksOptions()
      const networks = await openSandboxNetworks(options)
      await networks.attach(asId<RunId>('left'), DEFAULT_NETWORK, NO_DENIALS)
      await networks.close()
      assert.notDeepEqual(await traces(), untouched)
      await removeInstallationNetworks(options)
      mkdirSync(options.dir, { recursive: true })
      await removeInstallationNetworks(options)
      assert.deepEqual(await traces(), untouched)
    })
  })
}

const LIMIT = { timeoutMs: 5_000 }

function namespaces(): readonly string[] {
  return readdirSync('/run/netns').filter((name) => /^sy-test-\d+$/.test(name))
}

/** Everything that sandbox networks change on a machine: namespaces, devices, rules and forwarding. */
async function traces(): Promise<unknown> {
  const said = async (file: string, args: readonly string[]): Promise<string> =>
    (await runCommand(file, args, LIMIT)).stdout
  return {
    namespaces: readdirSync('/run/netns').toSorted(),
    devices: (await said('ip', ['-br', 'link'])).split('\n').map((line) => line.split(' ')[0]),
    routes: await said('ip', ['-4', 'route', 'show', 'table', 'all']),
    rules: await said('nft', ['list', 'ruleset']),
    forwarding: await said('sh', ['-c', 'grep . /proc/sys/net/ipv4/conf/*/forwarding']),
  }
}
