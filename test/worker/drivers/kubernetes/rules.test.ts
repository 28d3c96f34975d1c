import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, beforeEach, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import type { FakeObject } from '../../../support/fake-kubernetes.ts'
import {
  FAKE_CANARY_LIMITS as LIMITS,
  makeFakeNetwork,
  SHORT_CANARY_LIMITS as SHORT,
} from '../../../support/fake-network.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
let fake: FakeKubernetes

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())
beforeEach(() => {
  // Nobody enforces policies: all that is proved here is proved by rules.
  Object.assign(fake.cluster.network, makeFakeNetwork(), { enforced: [] })
})

async function open(name: string, options: Parameters<FakeKubernetes['open']>[0] = {}): Promise<TestDriver> {
  return await fake.open({ dir: join(fake.folder, name), network: 'rules', canaryLimits: LIMITS, ...options })
}

function runWith(network: Partial<SandboxSpec['network']>): DesiredRun {
  return makeDesiredRun({ ...POD_SPEC, network: { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true, ...network } })
}

type Container = { readonly name: string; readonly command: readonly string[]; readonly securityContext: object }

function initContainersOf({ run_id }: DesiredRun): readonly Container[] {
  const pod = fake.cluster.pods.get(`sandyard-${run_id}`)
  return (pod?.spec['initContainers'] ?? []) as readonly Container[]
}

test('a worker whose Pods are seen to obey rules starts, and offers what rules enforce', async () => {
  const { report } = await (await open('proved')).probe()
  assert.match(report.isolation, /packet rules in the network namespace of each Pod/)
  assert.deepEqual(
    report.abilities.filter((ability) => ability.startsWith('network')),
    ['network_off', 'network_policy', 'network_max_connections', 'network_max_udp_connections'],
  )
  assert.equal(fake.cluster.pods.size, 0)
})

test('a worker whose Pods do not obey rules does not start, and neither does one whose network passes nothing', async () => {
  fake.cluster.network.obeysRules = false
  await assert.rejects(open('ignored'), /does not enforce the rules of Pods.*\(egress\) was accepted.*nf_tables/)
  Object.assign(fake.cluster.network, { obeysRules: true, isBroken: true })
  await assert.rejects(open('broken', { canaryLimits: SHORT }), /unknown.*did not reach port 8080/)
  assert.equal(fake.cluster.pods.size, 0)
})

test('a namespace that refuses the capability is named, also if an earlier start was proved', async () => {
  await (await open('refused')).close()
  fake.cluster.network.admitsRules = false
  await assert.rejects(open('refused'), /namespace sandboxes admits no Pods with .*NET_ADMIN.*enforce=privileged/)
  // A full quota refuses every Pod, so it says nothing about rules.
  Object.assign(fake.cluster.network, { admitsRules: true, isFull: true })
  await (await open('refused', { canaryLimits: SHORT })).close()
  fake.cluster.network.isFull = false
})

test('the first container of a Pod loads the rules, with one capability and nothing that is writable', async () => {
  const driver = await open('container')
  const deny = { direction: 'egress', action: 'deny', ports: [{ start: 25, end: 25 }], protocols: [] } as const
  const policy = { default_egress: 'allow', default_ingress: 'deny', rules: [{ ...deny, destination: 'any' }] } as const
  const run = runWith({ policy, max_connections: 7, max_udp_connections: 3 })
  await driver.start(run, NEVER)
  const [first, ...others] = initContainersOf(run)
  assert.deepEqual(first?.securityContext, {
    runAsNonRoot: false,
    runAsUser: 0,
    runAsGroup: 0,
    allowPrivilegeEscalation: false,
    capabilities: { drop: ['ALL'], add: ['NET_ADMIN'] },
    readOnlyRootFilesystem: true,
  })
  assert.equal(Object.hasOwn(first, 'volumeMounts'), false)
  const rules = first.command.at(-1) ?? ''
  assert.match(rules, /add rule inet sandyard judging meta l4proto \{ tcp, udp \} th dport \{ 25 \} goto refusing\n/)
  assert.match(rules, /bounding ct state new meta l4proto != udp ct count over 7 drop\n/)
  assert.match(rules, /bounding ct state new meta l4proto udp ct count over 3 drop\n/)
  assert.match(rules, /bounding ct state new ct count over 4096 drop\n/)
  const containers = fake.cluster.pods.get(`sandyard-${run.run_id}`)?.spec['containers'] as readonly Container[]
  for (const { securityContext } of [...others, ...containers])
    assert.deepEqual((securityContext as { readonly capabilities: object }).capabilities, { drop: ['ALL'] })
  await driver.remove(run.run_id)
})

test('the policy beside the rules allows at least what they allow, also where no policy could be exact', async () => {
  const driver = await open('beside')
  const deny = { direction: 'egress', action: 'deny', ports: [{ start: 25, end: 25 }], protocols: [] } as const
  const rules = [{ ...deny, destination: { cidr: '44.0.0.0/24' } }] as const
  const run = runWith({ policy: { default_egress: 'allow', default_ingress: 'deny', rules } })
  await driver.start(run, NEVER)
  const label = fake.cluster.pods.get(`sandyard-${run.run_id}`)?.metadata.labels?.['sandyard.dev/network']
  const object = [...fake.cluster.objects.values()].find(
    ({ metadata }) => metadata.name === `sandyard-${String(label)}`,
  )
  const spec = object?.['spec'] as { readonly egress: readonly object[] } | undefined
  assert.ok(spec?.egress.some((one) => JSON.stringify(one) === '{"to":[{"ipBlock":{"cidr":"44.0.0.0/24"}}]}'))
  await driver.remove(run.run_id)
})

test('a run takes a warm Pod only if it has the same rules', async () => {
  const driver = await open('warm', { warm: 1 })
  const first = runWith({ max_connections: 5 })
  await driver.start(first, NEVER)
  await driver.remove(first.run_id)
  await waitUntil(() => driver.pools?.()[0]?.ready === 1)
  const other = runWith({ max_connections: 6 })
  await driver.start(other, NEVER)
  assert.equal(driver.warmStarts?.().hit, 0)
  const same = runWith({ max_connections: 5 })
  await driver.start(same, NEVER)
  assert.equal(driver.warmStarts?.().hit, 1)
  await driver.remove(other.run_id)
  await driver.remove(same.run_id)
  await driver.close()
})

test('rules that a node can not load end the start, and the error says what nft said', async () => {
  const driver = await open('unloaded')
  const run = runWith({})
  const started = assert.rejects(
    driver.start(run, NEVER),
    /rules of its network could not be loaded into the Pod: Operation not supported/,
  )
  const name = `sandyard-${run.run_id}`
  await waitUntil(() => fake.cluster.pods.has(name))
  const terminated = { exitCode: 1, message: 'Operation not supported' }
  fake.cluster.setStatus(name, { initContainerStatuses: [{ name: 'rules', state: { terminated } }] })
  await started
  await driver.remove(run.run_id)
})

test('the namespace of an organization admits the capability, and one that does not is refused by name', async () => {
  const driver = await open('organization', { namespaceMode: 'organization' })
  const run = runWith({})
  const path = `/api/v1/namespaces/sandboxes-${run.org_id}`
  const labelOf = (): string | undefined =>
    fake.cluster.objects.get(path)?.metadata.labels?.['pod-security.kubernetes.io/enforce']
  await driver.start(run, NEVER)
  assert.equal(labelOf(), 'privileged')
  await driver.remove(run.run_id)
  await driver.close()
  const earlier = fake.cluster.objects.get(path) as FakeObject
  fake.cluster.objects.set(path, {
    ...earlier,
    metadata: {
      ...earlier.metadata,
      labels: { ...earlier.metadata.labels, 'pod-security.kubernetes.io/enforce': 'restricted' },
    },
  })
  const next = await open('organization', { namespaceMode: 'organization' })
  const refused = runWith({})
  await assert.rejects(next.start(refused, NEVER), /must have the label pod-security.kubernetes.io\/enforce=privileged/)
  assert.equal(labelOf(), 'restricted')
  await next.remove(refused.run_id)
})
