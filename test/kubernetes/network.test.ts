import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { CANARY_LIMITS } from '../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { egressPolicy, egressRule, listeningRun, podNetworkOf, startAsPod } from '../support/pod-network.ts'
import { enforcePolicies, HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { waitUntil } from '../support/wait.ts'

// The network of Pods, in a cluster that enforces NetworkPolicies while a test asks for it (setup/engines/network-policies.mjs).

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 180_000 }
const pods = podNetworkOf('network')
let namespace: RealNamespace
let driver: TestDriver | null = null

before(async () => {
  if (skip === false) namespace = await makeRealNamespace('network')
})
after(async () => {
  if (skip !== false) return
  await driver?.close()
  await enforcePolicies(false)
  await namespace.remove()
})

function open(canaryLimits = CANARY_LIMITS): Promise<TestDriver> {
  return openKubernetesDriver({
    dir: join(namespace.folder, 'driver'),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    network: 'prove',
    canaryLimits,
  })
}

async function canaryObjects(): Promise<string> {
  return await kubectl('get', 'networkpolicies,pods', '-n', 'network', '-l', 'sandyard.dev/canary', '-o', 'name')
}

test(
  'without an enforcer of NetworkPolicies, the canary sees that a denied connection is accepted',
  LIMIT,
  async () => {
    await assert.rejects(
      open({ ...CANARY_LIMITS, changeMs: 2_000 }),
      /does not enforce NetworkPolicies.*\(ingress\) was still accepted/,
    )
    assert.doesNotMatch(await canaryObjects(), /networkpolic/)
  },
)

test('with an enforcer, the canary sees it in both directions', LIMIT, async () => {
  await enforcePolicies(true)
  driver = await open()
  assert.match((await driver.probe()).report.isolation, /NetworkPolicies that the cluster enforces/)
  assert.doesNotMatch(await canaryObjects(), /networkpolic/)
})

test('a sandbox reaches exactly what its policy allows, and nothing reaches it', LIMIT, async () => {
  const target = await pods.startTarget()
  const [open, other] = [`${target}:8080`, `${target}:8081`]
  const [apiServer, node] = ['10.96.0.1:443', '10.244.0.1:10250']
  const all = [apiServer, node, open, other]
  // A Pod that no policy closes reaches them all. So what a sandbox doesn't reach is closed by its policy.
  await waitUntil(async () => (await pods.reachedFrom(pods.target, all)).length === all.length, 30_000)
  const opened = { deny: [], allow: ['10.0.0.0/8'] }
  const rule = egressRule({ destination: { cidr: target }, ports: [{ start: 8080, end: 8080 }], protocols: ['tcp'] })
  for (const [network, network_ranges, expected] of [
    [{ policy: null }, { deny: [], allow: [] }, []],
    [{ enabled: false }, opened, []],
    [{ policy: egressPolicy('deny', rule) }, opened, [open]],
    // The operator has opened 10.0.0.0/8, but nobody opens a node.
    [{ policy: egressPolicy('allow') }, opened, [apiServer, open, other]],
  ] as const) {
    await using sandbox = await startAsPod(driver, listeningRun({ network, network_ranges }))
    const reached = new Set<string>()
    // An enforcer may open the network of a Pod some time after its start.
    await waitUntil(async () => {
      for (const one of await pods.reachedFrom(sandbox, all)) reached.add(one)
      return expected.every((one) => reached.has(one))
    }, 30_000)
    assert.deepEqual(reached, new Set<string>(expected), JSON.stringify(network))
    const own = `${await pods.addressOf(sandbox.pod)}:8080`
    await waitUntil(async () => (await pods.reachedFrom(sandbox, [own])).length === 1, 30_000)
    assert.deepEqual(await pods.reachedFrom(pods.target, [own]), [])
  }
})

test('a rule for addresses of the cluster is refused by name unless the operator opened them', LIMIT, async () => {
  const policy = egressPolicy('deny', egressRule({ destination: { group: 'private' } }))
  const run = listeningRun({ network: { policy }, network_ranges: { deny: [], allow: [] } })
  await assert.rejects(startAsPod(driver, run), /network\.policy\.rules\[0\]/)
  await driver?.remove(run.run_id)
})
