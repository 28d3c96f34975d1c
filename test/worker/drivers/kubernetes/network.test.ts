import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { DesiredRun } from '../../../../src/contract/workers/worker-protocol.ts'
import type { NetworkPolicy, Rule, SandboxSpec } from '../../../../src/domain/spec/spec.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { policiesPath } from '../../../../src/worker/drivers/kubernetes/namespaces/base-policies.ts'
import { CANARY_LIMITS } from '../../../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import { openPolicies } from '../../../../src/worker/drivers/kubernetes/network/policies.ts'
import { makeRunPolicies } from '../../../../src/worker/drivers/kubernetes/network/run-policy.ts'
import type { Pod } from '../../../../src/worker/drivers/kubernetes/pod.ts'
import { makeApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import type { FakeObject } from '../../../support/fake-kubernetes.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'
import { makeTestClock } from '../../../support/test-clock.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
const NETWORK = 'sandyard.dev/network'
const POLICIES = policiesPath('sandboxes')
let fake: FakeKubernetes

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())

async function open(name: string, options: Parameters<FakeKubernetes['open']>[0] = {}): Promise<TestDriver> {
  const canaryLimits = { ...CANARY_LIMITS, lookMs: 5 }
  return await fake.open({ dir: join(fake.folder, name), network: 'prove', canaryLimits, ...options })
}

function runWith(network: Partial<SandboxSpec['network']>, more: Partial<SandboxSpec> = {}): DesiredRun {
  return makeDesiredRun({
    ...POD_SPEC,
    network: { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true, ...network },
    ...more,
  })
}

function policyWith(...rules: readonly Partial<Rule>[]): NetworkPolicy {
  const rule: Rule = { direction: 'egress', destination: 'any', action: 'allow', ports: [], protocols: [] }
  return { default_egress: 'deny', default_ingress: 'deny', rules: rules.map((one) => ({ ...rule, ...one })) }
}

function policyOf({ run_id }: DesiredRun, namespace = 'sandboxes'): FakeObject | undefined {
  const label = fake.cluster.pods.get(`sandyard-${run_id}`)?.metadata.labels?.[NETWORK] ?? 'none'
  return fake.cluster.objects.get(`${policiesPath(namespace)}/sandyard-${label}`)
}

test('a Pod has the label of a policy that allows what the run may reach and nothing inbound, and others are closed', async () => {
  const driver = await open('plain')
  assert.deepEqual(
    (await driver.probe()).report.abilities.filter((ability) => ability.startsWith('network')),
    ['network_off', 'network_policy'],
  )
  const closed = fake.cluster.objects.get(`${POLICIES}/sandyard-closed`)?.['spec'] as { readonly podSelector: object }
  assert.deepEqual(closed, {
    podSelector: { matchExpressions: [{ key: NETWORK, operator: 'Exists' }] },
    policyTypes: ['Ingress', 'Egress'],
  })
  const ports = [{ start: 443, end: 444 }]
  const narrow = policyWith({ destination: { cidr: '44.0.0.0/24' }, ports, protocols: ['tcp'] })
  for (const [network, egress] of [
    [{ enabled: false }, []],
    [
      { policy: narrow },
      [{ to: [{ ipBlock: { cidr: '44.0.0.0/24' } }], ports: [{ protocol: 'TCP', port: 443, endPort: 444 }] }],
    ],
  ] as const) {
    const run = runWith(network)
    await driver.start(run, NEVER)
    const policy = policyOf(run)
    assert.deepEqual(policy?.['spec'], {
      podSelector: { matchLabels: { [NETWORK]: policy?.metadata.labels?.[NETWORK] } },
      policyTypes: ['Ingress', 'Egress'],
      egress,
    })
    await driver.remove(run.run_id)
  }
})

test('the policy is there before the Pod, and further Pods with an equal one cost no request', async () => {
  const driver = await open('order')
  const first = runWith({ policy: policyWith({ destination: { cidr: '45.0.0.0/24' } }) })
  fake.cluster.faults.refuse.push({ method: 'POST', status: 403 }) // the policy is the first that a start posts
  await assert.rejects(driver.start(first, NEVER), /^Error: the cluster refuses the NetworkPolicy of the sandbox: /)
  assert.equal(fake.cluster.pods.has(`sandyard-${first.run_id}`), false)
  await driver.remove(first.run_id)
  fake.cluster.requests.clear()
  for (const count of [1, 1, 1]) {
    const run = { ...first, ...makeDesiredRun(first.spec) }
    await driver.start(run, NEVER)
    assert.equal(fake.cluster.requests.get('POST object'), count)
    await driver.remove(run.run_id)
  }
})

test('what no NetworkPolicy can express, and addresses that the operator has not opened, are refused by name', async () => {
  const driver = await open('refuses')
  const private_ = { destination: { group: 'private' } } as const
  for (const [policy, message] of [
    [
      policyWith({ action: 'deny', ports: [{ start: 25, end: 25 }] }, { destination: { group: 'public' } }),
      /^Error: network\.policy\.rules: .*ICMP/,
    ],
    [policyWith(private_), /^Error: network\.policy\.rules\[0\]: .*operator must open/],
    [policyWith({}, { destination: { domain: 'example.com' } }), /^Error: network\.policy\.rules\[1\]\.destination/],
  ] as const) {
    const run = runWith({ policy })
    await assert.rejects(driver.start(run, NEVER), message)
    assert.equal(fake.cluster.pods.size, 0)
    await driver.remove(run.run_id)
  }
  const run = { ...runWith({ policy: policyWith(private_) }), network_ranges: { deny: [], allow: ['10.0.0.0/8'] } }
  await driver.start(run, NEVER)
  assert.deepEqual(policyOf(run)?.['spec'], {
    ...(policyOf(run)?.['spec'] as object),
    egress: [{ to: [{ ipBlock: { cidr: '10.0.0.0/8' } }] }],
  })
  await driver.remove(run.run_id)
})

test('a warm Pod has its policy before it is claimed, and a run with another policy does not take it', async () => {
  const driver = await open('warm', { warm: 1 })
  const first = runWith({})
  await driver.start(first, NEVER)
  await driver.remove(first.run_id)
  await waitUntil(() => driver.pools?.()[0]?.ready === 1)
  const [warm] = fake.cluster.pods.values()
  const label = warm?.metadata.labels?.[NETWORK] ?? ''
  assert.ok(fake.cluster.objects.has(`${POLICIES}/sandyard-${label}`))
  const off = runWith({ enabled: false })
  await driver.start(off, NEVER)
  assert.ok(fake.cluster.pods.has(`sandyard-${off.run_id}`))
  const same = runWith({})
  await driver.start(same, NEVER)
  assert.equal(driver.warmStarts?.().hit, 1)
  assert.equal(fake.cluster.pods.get(warm?.metadata.name ?? '')?.metadata.labels?.[NETWORK], label)
  await driver.remove(off.run_id)
  await driver.remove(same.run_id)
  await driver.close()
})

test('in the namespace of an organization, Pods with a policy of their own are closed, and those without one have the plain policy', async () => {
  const driver = await open('organization', { namespaceMode: 'organization' })
  const run = runWith({ enabled: false })
  await driver.start(run, NEVER)
  const namespace = `sandboxes-${run.org_id}`
  const selectorOf = (name: string): unknown => {
    const spec = fake.cluster.objects.get(`${policiesPath(namespace)}/${name}`)?.['spec']
    return (spec as { readonly podSelector: object } | undefined)?.podSelector
  }
  assert.deepEqual(selectorOf('sandyard-closed'), { matchExpressions: [{ key: NETWORK, operator: 'Exists' }] })
  assert.deepEqual(selectorOf('sandyard'), { matchExpressions: [{ key: NETWORK, operator: 'DoesNotExist' }] })
  assert.notEqual(policyOf(run, namespace), undefined)
  await driver.remove(run.run_id)
})

test('a worker does not start where a policy of others opens the network of all sandboxes', async () => {
  const path = `${POLICIES}/theirs`
  const add = (podSelector: object, egress: readonly object[]): void => {
    fake.cluster.objects.set(path, { metadata: { name: 'theirs' }, spec: { podSelector, egress } })
  }
  add({ matchExpressions: [{ key: 'sandyard.dev/owner', operator: 'Exists' }] }, [{}])
  await assert.rejects(open('foreign'), /theirs of namespace sandboxes opens the network of all sandboxes/)
  add({}, [])
  await open('foreign')
  add({ matchLabels: { app: 'theirs' } }, [{}])
  await open('other')
  fake.cluster.objects.delete(path)
})

test('a policy that no Pod has had for a while is deleted, and one that was deleted by others is made again', async () => {
  const clock = makeTestClock()
  const client = makeApiClient(fake.cluster.access)
  const owner = 'a'.repeat(32)
  const ownRanges = { addresses: () => [], rangesOf: () => [] }
  const policyFor = makeRunPolicies({
    network: 'prove',
    connectionBound: { connections: 1, newPerSecond: 1 },
    owner,
    ownRanges,
    nodeAddresses: () => [],
  })
  const used = policyFor(runWith({ enabled: false }))
  const unused = policyFor(runWith({}))
  const nameOf = ({ object }: typeof used): string => `${POLICIES}/${object.metadata.name}`
  const pods = [{ metadata: { labels: { [NETWORK]: used.label } } }] as unknown as readonly Pod[] // the labels are all that counts
  const deps = { client, owner, pods: { all: () => pods }, clock, log: makeLog('silent') }
  const policies = openPolicies({ ...deps, namespaces: ['sandboxes'] })
  const others = `${POLICIES}/of-another-worker`
  fake.cluster.objects.set(others, {
    metadata: { name: 'of-another-worker', labels: { 'sandyard.dev/owner': 'other' } },
  })
  for (const policy of [used, unused]) await policies.ensure('sandboxes', policy, NEVER)
  fake.cluster.objects.delete(nameOf(used))
  const sweepOnce = async (): Promise<void> => {
    await waitUntil(() => clock.sleepers === 1)
    clock.advance(600_000)
    await waitUntil(() => clock.sleepers === 1)
  }
  await sweepOnce()
  assert.equal(fake.cluster.objects.has(nameOf(unused)), false)
  await policies.ensure('sandboxes', used, NEVER)
  await sweepOnce()
  assert.ok(fake.cluster.objects.has(nameOf(used)), 'a Pod has it')
  assert.ok(fake.cluster.objects.has(others))
  await policies.close()
  client.close()
})
