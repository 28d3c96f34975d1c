import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { CANARY_LIMITS } from '../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { enforcePolicies, HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'

// The network of Pods, in a cluster that enforces NetworkPolicies while a test asks for it (setup/engines/network-policies.mjs).

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 180_000 }
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

test('without an enforcer of NetworkPolicies, the canary sees that a denied connection is accepted', LIMIT, async () => {
  await assert.rejects(open({ ...CANARY_LIMITS, changeMs: 2_000 }), /does not enforce NetworkPolicies.*\(ingress\) was still accepted/)
  assert.doesNotMatch(await canaryObjects(), /networkpolic/)
})

test('with an enforcer, the canary sees it in both directions', LIMIT, async () => {
  await enforcePolicies(true)
  driver = await open()
  assert.match((await driver.probe()).report.isolation, /NetworkPolicies that the cluster enforces/)
  assert.doesNotMatch(await canaryObjects(), /networkpolic/)
})
