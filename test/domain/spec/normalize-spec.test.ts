import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { CreateSandboxInput } from '../../../src/contract/sandboxes/spec-input.ts'
import { SandboxSpecReply } from '../../../src/contract/sandboxes/spec-output.ts'
import { ByteList } from '../../../src/domain/byte-lists.ts'
import { normalizeSpec, type NormalizedSpec } from '../../../src/domain/spec/normalize-spec.ts'
import { renderSpec } from '../../../src/control/sandboxes/render-spec.ts'
import { projectSpec } from '../../../src/domain/spec/project-spec.ts'
import type { Refusal } from '../../../src/domain/refusal.ts'
import type { NetworkPolicy, Rule } from '../../../src/domain/spec/spec.ts'
import type { NetworkInput, SpecInput } from '../../../src/domain/spec/spec-input.ts'
import { makeSchemaCompiler } from '../../../src/http/requests/schemas/schema-compiler.ts'
import { publishedSchema } from '../../support/contract.ts'
import { DNS_RULE, networkWith } from '../../support/networks.ts'
import { MALFORMED_ADDRESS_BLOCKS, asInput, specInputs } from '../../support/spec-inputs.ts'

function normalized(input: SpecInput): NormalizedSpec {
  const result = normalizeSpec(input)
  assert.ok('normalized' in result, 'refusal' in result ? JSON.stringify(result.refusal) : '')
  return result.normalized
}

function refused(input: SpecInput): Refusal {
  const result = normalizeSpec(input)
  assert.ok('refusal' in result, 'it was accepted')
  return result.refusal
}

const IMAGE = { image: 'registry.example/box:1' }

test('a normalized specification sent again normalizes to itself', () => {
  const parse = makeSchemaCompiler()(CreateSandboxInput, 'body')
  fc.assert(
    fc.property(specInputs, (input) => {
      const { spec } = normalized(parse(input))
      assert.deepEqual(normalized(parse(asInput(spec))).spec, spec)
    }),
    { numRuns: 300 },
  )
})

test('the projection of any accepted specification fits our reply schema and that of the published API document', () => {
  const ours = makeSchemaCompiler()(SandboxSpecReply, 'body')
  const published = publishedSchema('/components/schemas/SandboxSpecResponse')
  fc.assert(
    fc.property(specInputs, (input) => {
      const projection: unknown = JSON.parse(JSON.stringify(projectSpec(normalized(input).spec)))
      ours(projection)
      assert.ok(published(projection), JSON.stringify(published.errors))
    }),
    { numRuns: 300 },
  )
})

test('the stored text of a specification is its JSON, and the text for replies is exactly the JSON of its projection', async () => {
  await fc.assert(
    fc.asyncProperty(specInputs, async (input) => {
      const { spec } = normalized(input)
      const { spec_json, projection_json } = await renderSpec(spec)
      assert.deepEqual(JSON.parse(spec_json), JSON.parse(JSON.stringify(spec)))
      assert.equal(projection_json, JSON.stringify(projectSpec(spec)))
    }),
  )
})

test('a create body with only an image gets the documented defaults', () => {
  const { spec, name, slug, registry } = normalized(IMAGE)
  assert.deepEqual({ name, slug, registry }, { name: null, slug: null, registry: { mode: 'auto' } })
  assert.deepEqual(spec.resources, { memory_mib: 512, vcpus: 1, disk_size_mib: null })
  assert.equal(spec.runtime.metrics_sample_interval_ms, 1000)
  assert.equal(spec.pull_policy, 'if_missing')
  assert.deepEqual(spec.lifecycle, { ephemeral: false, idle_timeout_secs: null, max_duration_secs: null })
  assert.deepEqual(spec.network, { enabled: true, strict: false, max_connections: null, policy: null, secrets: [] })
})

test('the PascalCase spellings of replies mean the same as the snake_case ones', () => {
  const { spec } = normalized({
    image: { type: 'Oci', reference: 'box' },
    pull_policy: 'IfMissing',
    rlimits: [{ resource: 'Nofile', soft: 1, hard: 2 }],
    mounts: [{ type: 'DiskImage', host: 'd', guest: '/d', format: 'Qcow2' }],
    patches: [{ type: 'CopyFile', src: 'a', dst: '/a' }],
    network: { policy: { rules: [{ direction: 'Egress', destination: { group: 'LinkLocal' }, action: 'Deny' }] } },
  })
  assert.equal(spec.pull_policy, 'if_missing')
  assert.equal(spec.rlimits[0]?.resource, 'nofile')
  assert.deepEqual([spec.mounts[0]?.type, spec.patches[0]?.type], ['disk_image', 'copy_file'])
  assert.deepEqual(spec.network.policy?.rules[0]?.destination, { group: 'link_local' })
})

test('the TCP limit of connections has two names, and the UDP limit is one of its own', () => {
  const limits = (network: object) => normalized({ ...IMAGE, network }).spec.network
  assert.equal(limits({ max_tcp_connections: 7 }).max_connections, 7)
  assert.equal(limits({ max_connections: 7, max_tcp_connections: 7 }).max_connections, 7)
  assert.equal(limits({ max_udp_connections: 5 }).max_udp_connections, 5)
  const refusal = refused({ ...IMAGE, network: { max_connections: 7, max_tcp_connections: 8 } })
  assert.equal(refusal.field, 'network.max_tcp_connections')
})

test('an interface has an address of its pool, a unicast MAC and an MTU that a device can have', () => {
  const device = (network: object) => normalized({ ...IMAGE, network: { interface: network } }).spec.network.interface
  assert.equal(device({ ipv4_pool: '172.16.0.0/12' })?.ipv4_address, '172.16.0.2')
  assert.deepEqual(device({ mac: [2, 0, 0, 0, 0, 1], mtu: 1_400 })?.mac, [2, 0, 0, 0, 0, 1])
  assert.equal(device({ mtu: null, ipv6_pool: null }), undefined)
  const cases: readonly (readonly [object, string])[] = [
    [{ ipv4_address: '10.0.0.0/8' }, 'ipv4_address'],
    [{ ipv4_address: '127.0.0.1' }, 'ipv4_address'],
    [{ ipv4_address: '169.254.169.254' }, 'ipv4_address'],
    [{ ipv4_address: '10.0.0.2', ipv4_pool: '172.16.0.0/12' }, 'ipv4_address'],
    [{ ipv4_pool: '172.16.0.2' }, 'ipv4_pool'],
    [{ ipv6_address: 'fd00::2' }, 'ipv6_address'],
    [{ mac: [1, 0, 0, 0, 0, 1] }, 'mac'],
    [{ mac: [2, 0, 0, 0, 0, 256] }, 'mac'],
    [{ mac: [2, 0] }, 'mac'],
    [{ mtu: 60 }, 'mtu'],
  ]
  for (const [network, field] of cases)
    assert.equal(refused({ ...IMAGE, network: { interface: network } }).field, `network.interface.${field}`)
})

test('nameservers have four forms, and others are refused by their index', () => {
  const dns = (input: object) => normalized({ ...IMAGE, network: { dns: input } }).spec.network.dns
  const nameservers = ['9.9.9.9', '9.9.9.9:5353', 'NS.example.', 'ns.example:54']
  assert.deepEqual(
    dns({ nameservers })?.nameservers.map(({ host, port }) => `${host} ${String(port)}`),
    ['9.9.9.9 53', '9.9.9.9 5353', 'ns.example 53', 'ns.example 54'],
  )
  assert.equal(dns({ nameservers: [], query_timeout_ms: 5_000, rebind_protection: true }), undefined)
  assert.deepEqual(dns({ rebind_protection: false })?.nameservers, [])
  for (const bad of ['::1', '[::1]:53', '1.2.3', '9.9.9.9:0', 'ns:x', '', 'a b', 'https://dns.example/'])
    assert.equal(
      refused({ ...IMAGE, network: { dns: { nameservers: [bad] } } }).field,
      'network.dns.nameservers[0]',
      bad,
    )
  assert.equal(refused({ ...IMAGE, network: { dns: { query_timeout_ms: 0 } } }).field, 'network.dns.query_timeout_ms')
})

test('the network of a reply can be sent back', () => {
  assert.deepEqual(
    normalized({ ...IMAGE, network: { ports: [], trust_host_cas: false, dns: null, tls: null } }).spec.network,
    normalized(IMAGE).spec.network,
  )
  assert.equal(normalized({ ...IMAGE, network: { trust_host_cas: true } }).spec.network.trust_host_cas, true)
})

test('env keeps its order and its duplicates, so that the later one wins when it is applied', () => {
  const env = [
    { key: 'A', value: '1' },
    { key: 'B', value: '' },
    { key: 'A', value: '2' },
  ]
  assert.deepEqual(normalized({ ...IMAGE, env }).spec.env, env)
})

test('the bytes of a file patch are kept as base64', () => {
  const bytes = [0, 1, 250, 255]
  for (const content of [bytes, new ByteList(Buffer.from(bytes))]) {
    const { spec } = normalized({ ...IMAGE, patches: [{ type: 'file', path: '/b', content }] })
    assert.deepEqual(spec.patches, [{ type: 'file', path: '/b', content: 'AAH6/w==', mode: null, replace: false }])
  }
})

test('mounts keep the order of the request, so that a refusal counts them as the client does', () => {
  const { spec } = normalized({
    ...IMAGE,
    mounts: [
      { type: 'tmpfs', guest: '/w/a' },
      { type: 'tmpfs', guest: '/w/./' },
    ],
  })
  assert.deepEqual(
    spec.mounts.map(({ guest }) => guest),
    ['/w/a', '/w'],
  )
})

test('every refusal names the field, and its code is invalid_request unless the field asks for what no driver has', () => {
  const cases: readonly (readonly [SpecInput, string])[] = [
    [{}, 'image'],
    [{ image: 'a b' }, 'image'],
    [{ image: { type: 'oci', reference: '' } }, 'image.reference'],
    [{ image: 'a', source: 'oci', reference: 'a' }, 'reference'],
    [{ reference: 'a' }, 'source'],
    [{ ...IMAGE, name: 'x'.repeat(129) }, 'name'],
    [{ ...IMAGE, name: 'a\nb' }, 'name'],
    [{ ...IMAGE, slug: 'a--b' }, 'slug'],
    [{ ...IMAGE, slug: '-ab' }, 'slug'],
    [{ ...IMAGE, slug: 'ab' }, 'slug'],
    [{ ...IMAGE, labels: { 'sandbox.x': '1' } }, 'labels.sandbox.x'],
    [{ ...IMAGE, labels: { '': '1' } }, 'labels'],
    [{ ...IMAGE, resources: { memory_mib: 0 } }, 'resources.memory_mib'],
    [{ ...IMAGE, resources: { vcpus: 0 } }, 'resources.vcpus'],
    [{ ...IMAGE, resources: { disk_size_mib: 1 } }, 'resources.disk_size_mib'],
    [{ ...IMAGE, rlimits: [{ resource: 'cpu', soft: 2, hard: 1 }] }, 'rlimits[0].soft'],
    [{ ...IMAGE, env: [{ key: 'A=B', value: '' }] }, 'env[0].key'],
    [{ ...IMAGE, runtime: { workdir: 'app' } }, 'runtime.workdir'],
    [{ ...IMAGE, runtime: { hostname: '-a' } }, 'runtime.hostname'],
    [{ ...IMAGE, runtime: { scripts: { 'a/b': '' } } }, 'runtime.scripts'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: 'tmp' }] }, 'mounts[0].guest'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/' }] }, 'mounts[0].guest'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/a', size_mib: 0 }] }, 'mounts[0].size_mib'],
    [{ ...IMAGE, mounts: [{ type: 'tmpfs', guest: '/a' }, { type: 'tmpfs', guest: '/a/' }] }, 'mounts[1].guest'],
    [{ ...IMAGE, mounts: [{ type: 'bind', host: 'a/../b', guest: '/a' }] }, 'mounts[0].host'],
    [{ ...IMAGE, mounts: [{ type: 'bind', host: '', guest: '/a' }] }, 'mounts[0].host'],
    [{ ...IMAGE, patches: [{ type: 'remove', path: '/../etc' }] }, 'patches[0].path'],
    [{ ...IMAGE, patches: [{ type: 'symlink', target: '', link: '/a' }] }, 'patches[0].target'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: { cidr: '1.2.3.4/33' }, action: 'allow' }] } } }, 'network.policy.rules[0].destination.cidr'],
    [{ ...IMAGE, network: { policy: { rules: [{ direction: 'any', destination: 'any', action: 'allow', ports: [{ start: 2, end: 1 }] }] } } }, 'network.policy.rules[0].ports[0].end'],
    [{ ...IMAGE, init: { cmd: 'init' } }, 'init.cmd'],
  ] // prettier-ignore
  for (const [input, field] of cases) {
    const refusal = refused(input)
    assert.deepEqual([refusal.code, refusal.field], ['invalid_request', field])
    assert.notEqual(refusal.accepted, '')
  }
})

test('each invalid field of a network rule is refused with its path', () => {
  const fieldOf = (rule: Partial<Rule>): string => refused({ ...IMAGE, network: networkInput([{}, rule]) }).field
  for (const block of MALFORMED_ADDRESS_BLOCKS)
    assert.equal(fieldOf({ destination: { cidr: block } }), 'network.policy.rules[1].destination.cidr', block)
  const ports = [
    { start: 1, end: 2 },
    { start: 3, end: 2 },
  ]
  assert.equal(fieldOf({ ports }), 'network.policy.rules[1].ports[1].end')
  const one = [{ start: 1, end: 2 }]
  assert.equal(fieldOf({ ports: one, protocols: ['icmpv4', 'icmpv6'] }), 'network.policy.rules[1].ports')
})

/**
 * Policies as the public client sends them: its presets, and rules that its policy builder and its command line
 * produce.
 */
const FROM_CLIENTS: readonly (readonly Partial<Rule>[])[] = [
  [],
  [DNS_RULE],
  [DNS_RULE, { destination: { group: 'public' } }],
  [{ destination: { group: 'public' } }, DNS_RULE, { destination: { group: 'private' } }],
  [{ destination: { cidr: 'fd00::/8' }, action: 'deny' }],
  [{ destination: { cidr: '192.168.0.0/16' }, direction: 'ingress' }],
  [{ destination: { domain: 'example.com' }, protocols: ['tcp', 'udp'], ports: [{ start: 8000, end: 9000 }] }],
  [{ ports: [{ start: 0, end: 65_535 }], protocols: ['tcp', 'udp'] }],
  [{ ports: [{ start: 80, end: 80 }], protocols: ['tcp', 'icmpv4'] }],
  [{ protocols: ['icmpv4', 'icmpv6'] }],
]

test('the network policies that public clients send are accepted', () => {
  for (const rules of FROM_CLIENTS) normalized({ ...IMAGE, network: networkInput(rules, { default_ingress: 'allow' }) })
})

function networkInput(rules: readonly Partial<Rule>[], policy: Partial<NetworkPolicy> = {}): NetworkInput {
  return { policy: networkWith(rules, policy).policy }
}
