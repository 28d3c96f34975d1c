import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { asId, type RunId } from '../../../src/domain/ids.ts'
import type { NetworkSpec } from '../../../src/domain/spec/spec.ts'
import { describeRefusal } from '../../../src/worker/drivers/shared/report-refusals.ts'
import { openSandboxNetworks } from '../../../src/worker/network/open-sandbox-networks.ts'
import { tieRules } from '../../../src/worker/network/rules/redirect-rules.ts'
import type { SandboxNetworks } from '../../../src/worker/network/sandbox-network.ts'
import { attachNamedInmate, makeNamedWorld, startHost, type NamedHost } from '../../support/named-world.ts'
import { OUTSIDE } from '../../support/network-world.ts'
import { DEFAULT_NETWORK, NO_DENIALS, networksOptions, networkWith } from '../../support/networks.ts'
import { isInOwnNetwork } from '../../support/own-network.ts'
import { waitUntil } from '../../support/wait.ts'

const MANY = [OUTSIDE.public, ...Array.from({ length: 100 }, (_, at) => `44.1.2.${String(at)}`)]
const WIDE = [1, 2, 3, 4, 5]
const NAMES = {
  ...Object.fromEntries(
    WIDE.map((n) => [
      `n${String(n)}.wide.example`,
      { addresses: Array.from({ length: 101 }, (_, at) => `44.2.${String(n)}.${String(at)}`), ttlSecs: 86_400 },
    ]),
  ),
  'www.many.example': { addresses: MANY },
  'good.example': { addresses: [OUTSIDE.public] },
  'alias.example': { addresses: [OUTSIDE.public], alias: 'cdn.example' },
  'bad.example': { addresses: [OUTSIDE.otherPublic] },
  'www.tree.example': { addresses: [OUTSIDE.public] },
  'denied.example': { addresses: [OUTSIDE.hardDenied] },
  'meta.internal': { addresses: [OUTSIDE.metadata] },
  'brief.example': { addresses: [OUTSIDE.public], ttlSecs: 4 },
}

if (isInOwnNetwork(import.meta.filename)) {
  describe('rules by name', () => {
    const cleanups = new AsyncDisposableStack()
    let networks: SandboxNetworks
    let outside: NamedHost

    before(async () => {
      const world = cleanups.use(await makeNamedWorld(NAMES))
      outside = world.outside
      await outside.ask({ kind: 'serveDatagrams', address: OUTSIDE.public, port: 9_000 })
      await outside.ask({ kind: 'serveBanner', port: 22 })
      networks = await openSandboxNetworks(cleanups.use(await networksOptions()))
      cleanups.defer(() => networks.close())
    })
    after(() => cleanups.disposeAsync())

    test('an allowed name is reached over TLS, HTTP and datagrams once it was looked up, and nothing else is', async () => {
      await using box = await attach('allow', networkWith([{ destination: { domain: 'good.example' } }]))
      assert.equal(await box.web(), 'ECONNRESET', 'an address without a look-up')
      assert.equal(await box.datagram(), 'ABORT_ERR')
      assert.equal(await box.lookUp('good.example'), OUTSIDE.public)
      assert.match(await box.web(), /^200 .*"sni":"good.example"/)
      assert.match(await box.web({ port: 80, tls: undefined }), /^200 .*"host":"good.example"/)
      assert.equal(await box.datagram(), 'answered')
      assert.equal(await box.web({ address: OUTSIDE.otherPublic }), 'ECONNRESET', 'another address')
    })

    test('another name on the same address is refused by SNI', async () => {
      await using box = await attach('sni', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      assert.equal(await box.web({ tls: 'www.tree.example' }), 'ECONNRESET')
      assert.match(await box.web({ tls: null }), /^200/, 'without a name the address decides')
    })

    test('an answer with many addresses opens datagrams, unless its addresses and the rules for its name are too many', async () => {
      const rules = (count: number): NetworkSpec =>
        networkWith(
          Array.from({ length: count }, (_, at) => {
            const start = 9_000 + at
            return {
              destination: { domain_suffix: 'many.example' },
              protocols: ['udp'],
              ports: [{ start, end: start }],
            }
          }),
        )
      await using few = await attach('few', rules(40))
      assert.match(await few.lookUp('www.many.example'), new RegExp(`^${OUTSIDE.public},`))
      assert.equal(await few.datagram(), 'answered')
      await using many = await attach('many', rules(41))
      assert.equal(await many.lookUp('www.many.example'), 'ESERVFAIL')
      const tied = new Map(MANY.map((address) => [address, 10]))
      assert.equal(tieRules(1, 0, tied).length, 3, 'the commands of a rule are as many for any number of addresses')
    })

    test('a sandbox has a bounded number of addresses in the packet filter, and its log tells what was refused', async () => {
      const refused: string[] = []
      networks.onRefused((run, refusal) => refused.push(`${run}: ${describeRefusal(refusal)}`))
      const rules = Array.from({ length: 40 }, (_, at) => ({
        destination: { domain_suffix: 'wide.example' },
        protocols: ['udp' as const],
        ports: [{ start: 9_000 + at, end: 9_000 + at }],
      }))
      await using wide = await attach('wide', networkWith(rules))
      await using other = await attach('narrow', networkWith(rules))
      for (const n of WIDE.slice(0, 4)) assert.match(await wide.lookUp(`n${String(n)}.wide.example`), /^44\.2\./)
      assert.equal(await wide.lookUp('n5.wide.example'), 'ESERVFAIL')
      assert.match(await wide.lookUp('n4.wide.example'), /^44\.2\.4\./, 'what is known is not counted again')
      assert.match(await other.lookUp('n5.wide.example'), /^44\.2\.5\./, 'another sandbox has a bound of its own')
      assert.ok(refused.length > 0)
      for (const line of refused)
        assert.match(line, /^wide: connection to .*:53 \(n5\.wide\.example\) refused: .*too many addresses$/)
    })

    test('names that the policy denies do not exist', async () => {
      await using box = await attach('queries', networkWith([{ destination: { domain_suffix: 'tree.example' } }]))
      assert.equal(await box.lookUp('good.example'), 'ENOTFOUND')
      assert.equal(await box.lookUp('WWW.Tree.example'), OUTSIDE.public)
      assert.match(await box.web({ tls: 'www.tree.example' }), /^200/)
    })

    test('a denied name is refused by SNI and by its address, and others stay open', async () => {
      const rules = [{ destination: { domain: 'bad.example' }, action: 'deny' }] as const
      await using box = await attach('deny', networkWith(rules, { default_egress: 'allow' }))
      assert.equal(await box.lookUp('bad.example'), 'ENOTFOUND')
      assert.equal(await box.web({ tls: 'bad.example' }), 'ECONNRESET')
      assert.match(await box.web(), /^200/)
      assert.equal(await box.datagram(), 'answered')
    })

    test('a name that leads to an address that the operator denies stays denied, and so does the metadata address', async () => {
      const rules = ['denied.example', 'meta.internal'].map((domain) => ({ destination: { domain } }))
      await using box = await attach('operator', networkWith(rules))
      assert.equal(await box.lookUp('denied.example'), OUTSIDE.hardDenied)
      assert.equal(await box.web({ address: OUTSIDE.hardDenied, tls: 'denied.example' }), 'EHOSTUNREACH')
      await box.lookUp('meta.internal')
      assert.equal(await box.web({ address: OUTSIDE.metadata, tls: 'meta.internal' }), 'ECONNRESET')
    })

    test('a name ends with its time to live, also over datagrams', async () => {
      await using box = await attach('ttl', networkWith([{ destination: { domain: 'brief.example' } }]))
      await waitUntil(async () => {
        await box.lookUp('brief.example')
        return (await box.web({ tls: 'brief.example' })).startsWith('200')
      })
      await waitUntil(async () => (await box.web({ tls: 'brief.example' })) === 'ECONNRESET', 30_000)
      // the packet filter learns the name a moment after the egress process, so it forgets it later too
      await waitUntil(async () => (await box.datagram()) === 'ABORT_ERR', 30_000)
    })

    test('with strict, a connection that is allowed by name must be readable', async () => {
      const network = { ...networkWith([{ destination: { domain: 'good.example' } }]), strict: true }
      await using box = await attach('strict', network)
      await box.lookUp('good.example')
      assert.equal(await box.web(), 'ECONNRESET')
      assert.match(await box.web({ port: 80, tls: undefined }), /^200/)
    })

    test('a server that speaks first is judged by its address after a pause', async () => {
      await using box = await attach('banner', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      assert.equal(
        await box.host.ask({ kind: 'readBanner', address: OUTSIDE.public, port: 22 }),
        'the server speaks first',
      )
    })

    test('each request of a plain connection is judged by its Host', async () => {
      await using box = await attach('hosts', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      const denied = await box.web({ port: 80, tls: undefined, host: 'www.tree.example' })
      assert.match(denied, /^403 .*"network_policy_denied","domain":"www.tree.example"/)
      await outside.ask({ kind: 'takeRequests' })
      const two = ['good.example', 'www.tree.example'].map((host) => `GET /${host} HTTP/1.1\r\nHost: ${host}\r\n\r\n`)
      const hex = Buffer.from(two.join('')).toString('hex')
      await box.host.ask({ kind: 'write', address: OUTSIDE.public, port: 80, hex })
      const arrived = await outside.ask({ kind: 'takeRequests' })
      assert.ok(!arrived.includes('www.tree.example'), arrived)
    })

    test('records that tell how to encrypt names are withheld where names are read, and only there', async () => {
      await using box = await attach('service', networkWith([{ destination: { domain: 'good.example' } }]))
      await using other = await attach('plain', DEFAULT_NETWORK)
      const ask = (one: typeof box) =>
        one.host.ask({ kind: 'lookUpService', server: one.gateway, name: 'good.example' })
      assert.deepEqual([await ask(box), await ask(other)], ['code 0, 0 answers', 'code 0, 1 answers'])
    })

    test('a name that is encrypted is refused where names decide', async () => {
      await using box = await attach('ech', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      const hidden = clientHello('good.example', { isEncrypted: true })
      assert.equal(await box.host.ask({ kind: 'write', address: OUTSIDE.public, port: 443, hex: hidden }), 'ECONNRESET')
      const open = clientHello('good.example', { isEncrypted: false })
      assert.match(await box.host.ask({ kind: 'write', address: OUTSIDE.public, port: 443, hex: open }), /^15|^16/)
    })

    test('without the egress process nothing passes, and it is started again', async () => {
      await using box = await attach('killed', networkWith([{ destination: { domain: 'good.example' } }]))
      await box.lookUp('good.example')
      assert.match(await box.web(), /^200/)
      const [pid] = processesOf(EGRESS_USER)
      process.kill(pid ?? 0, 'SIGSTOP')
      process.kill(pid ?? 0, 'SIGKILL')
      assert.ok(['EHOSTUNREACH', 'ECONNRESET'].includes(await box.web()))
      await waitUntil(async () => (await box.web()).startsWith('200'))
      assert.notEqual(processesOf(EGRESS_USER)[0], pid)
    })

    test('the egress process has no rights and no way around the policy', async () => {
      await using box = await attach('rights', networkWith([{ destination: { domain: 'good.example' } }]))
      const [pid = 0] = processesOf(EGRESS_USER)
      const status = readFileSync(`/proc/${String(pid)}/status`, 'utf8')
      assert.match(status, /CapEff:\t0+\n/)
      assert.match(status, /CapPrm:\t0+\n/)
      assert.match(status, /NoNewPrivs:\t1/)
      assert.match(status, /Groups:\t *\n/)
      await box.lookUp('good.example')
      // the process can't reach more than the policy allows by addresses, whatever it is told
      const from = (target: string, source: string): string =>
        spawnSync('nsenter', ['--net=/run/netns/sy-test-router', process.execPath, '-e', DIAL, target, source], {
          encoding: 'utf8',
        }).stdout
      assert.equal(from(OUTSIDE.hardDenied, box.gateway), 'EHOSTUNREACH')
      assert.equal(from(OUTSIDE.metadata, box.gateway), 'EHOSTUNREACH')
      assert.equal(from(OUTSIDE.public, box.gateway), 'connected')
      assert.equal(from(OUTSIDE.public, '10.209.0.2'), 'timeout', 'an address of no sandbox')
    })

    test('a policy with names goes on after the worker was restarted', async () => {
      const options = await networksOptions({ namePrefix: 'again', addressPool: '10.210.0.0/16' })
      await using _ = options
      const first = await openSandboxNetworks(options)
      const run = asId<RunId>('again')
      const { netnsPath, resolvers } = await first.attach(
        run,
        networkWith([{ destination: { domain: 'good.example' } }]),
        NO_DENIALS,
      )
      const host = startHost(netnsPath)
      await first.close()
      const second = await openSandboxNetworks(options)
      const get = {
        kind: 'get',
        address: OUTSIDE.public,
        port: 443,
        host: 'good.example',
        tls: 'good.example',
      } as const
      assert.equal(await host.ask(get), 'ECONNRESET')
      assert.equal(await host.ask({ kind: 'lookUp', server: resolvers[0] ?? '', name: 'good.example' }), OUTSIDE.public)
      assert.match(await host.ask(get), /^200/)
      await host.close()
      await second.detach(run)
      await second.close()
    })

    test('nothing of a sandbox stays in the packet filter', () => {
      const { stdout } = spawnSync('nsenter', ['--net=/run/netns/sy-test-router', 'nft', 'list', 'ruleset'], {
        encoding: 'utf8',
      })
      assert.doesNotMatch(stdout, /(?:redirect|dial|tied|judge|pass)_\d/)
    })

    test('queries to another resolver get the answers of the sandbox own one', async () => {
      const rules = [{ destination: { domain: 'good.example' } }, { destination: { cidr: '44.0.113.200' } }]
      await using box = await attach('resolver', networkWith(rules))
      const asked = await box.host.ask({ kind: 'lookUp', server: '44.0.113.200', name: 'good.example' })
      assert.equal(asked, OUTSIDE.public)
      assert.match(await box.web(), /^200/)
    })

    const attach = (name: string, network: NetworkSpec) => attachNamedInmate(networks, name, network)
  })
}

const EGRESS_USER = 60_998

/** Connects to port 443 of an address from an address, and prints how it ended. */
const DIAL = `const [host, localAddress] = process.argv.slice(1); const s = require('net').connect({ host, port: 443, localAddress });
s.setTimeout(700, () => { process.stdout.write('timeout'); s.destroy() }); s.on('connect', () => { process.stdout.write('connected'); s.destroy() }); s.on('error', (e) => process.stdout.write(e.code))`

function processesOf(user: number): readonly number[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map(Number).filter((pid) => (tryReadStatus(pid) ?? '').includes(`\nUid:\t${String(user)}\t`))
}

function tryReadStatus(pid: number): string | null {
  try {
    return readFileSync(`/proc/${String(pid)}/status`, 'utf8')
  } catch {
    return null // it ended
  }
}

/** A TLS 1.3 handshake message with a server name (RFC 8446, 4.1.2), as hex. */
function clientHello(name: string, { isEncrypted }: { readonly isEncrypted: boolean }): string {
  const u16 = (n: number): string => n.toString(16).padStart(4, '0')
  const sized = (hex: string): string => u16(hex.length / 2) + hex
  const extension = (type: string, hex: string): string => type + sized(hex)
  const nameHex = Buffer.from(name).toString('hex')
  const extensions = [
    extension('0000', sized(`00${sized(nameHex)}`)),
    extension('000a', sized('001d0017')),
    extension('000d', sized('040308040401')),
    extension('002b', '020304'),
    extension('0033', sized('001d' + sized('09'.padEnd(64, '0')))),
    ...(isEncrypted ? [extension('fe0d', '00')] : []),
  ].join('')
  const body = `0303${'11'.repeat(32)}00${sized('1301')}0100${sized(extensions)}`
  const message = `01${(body.length / 2).toString(16).padStart(6, '0')}${body}`
  return `160301${sized(message)}`
}
