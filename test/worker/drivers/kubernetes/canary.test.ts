import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, beforeEach, test } from 'node:test'
import { systemClock } from '../../../../src/lib/clock.ts'
import { makeLog } from '../../../../src/lib/log.ts'
import { policiesPath } from '../../../../src/worker/drivers/kubernetes/namespaces/base-policies.ts'
import { runCanary, tryPolicies, type CanaryVerdict } from '../../../../src/worker/drivers/kubernetes/network/canary.ts'
import {
  canaryPolicyName,
  makeCanaryPod,
  makeCanaryPolicy,
} from '../../../../src/worker/drivers/kubernetes/network/canary-objects.ts'
import { openNetworkProof } from '../../../../src/worker/drivers/kubernetes/network/network-proof.ts'
import { readStoredProof } from '../../../../src/worker/drivers/kubernetes/network/stored-proof.ts'
import { makeApiClient } from '../../../../src/worker/kubernetes/api-client.ts'
import { makeDesiredRun } from '../../../support/desired-run.ts'
import {
  FAKE_CANARY_LIMITS as LIMITS,
  makeFakeNetwork,
  SHORT_CANARY_LIMITS as SHORT,
} from '../../../support/fake-network.ts'
import { makeFakeKubernetes, type FakeKubernetes, type TestDriver } from '../../../support/kubernetes-driver.ts'
import { makeTestClock } from '../../../support/test-clock.ts'
import { waitUntil } from '../../../support/wait.ts'
import { POD_SPEC } from '../kubernetes-conformance.ts'

const NEVER = new AbortController().signal
let fake: FakeKubernetes

before(async () => {
  fake = await makeFakeKubernetes()
})
after(() => fake.remove())
beforeEach(() => {
  Object.assign(fake.cluster.network, makeFakeNetwork())
})

async function open(name: string, canaryLimits = LIMITS): Promise<TestDriver> {
  return await fake.open({ dir: join(fake.folder, name), network: 'prove', canaryLimits })
}

/** The policies of canaries. */
function policies(): readonly string[] {
  return [...fake.cluster.objects.keys()].filter((path) => path.includes('/networkpolicies/sandyard-canary-'))
}

/** The Pods that nobody has asked to delete. */
function namesOfPods(): readonly string[] {
  const alive = [...fake.cluster.pods.values()].filter(({ metadata }) => metadata.deletionTimestamp === undefined)
  return alive.map(({ metadata }) => metadata.name)
}

function assertNothingIsLeft(): void {
  assert.deepEqual(namesOfPods(), [])
  assert.deepEqual(policies(), [])
}

test('a worker whose cluster is seen to enforce policies starts, and its canary is no sandbox', async () => {
  const driver = await open('enforced')
  assertNothingIsLeft()
  assert.deepEqual(await driver.list(), [])
  assert.match((await driver.probe()).report.isolation, /NetworkPolicies that the cluster enforces/)
  const run = makeDesiredRun(POD_SPEC)
  await driver.start(run, NEVER)
  await driver.remove(run.run_id)
  await driver.close()
})

test('a worker whose cluster enforces nothing, or one direction alone, does not start, and says what to do', async () => {
  for (const [enforced, direction] of [
    [[], 'ingress'],
    [['Egress'], 'ingress'],
    [['Ingress'], 'egress'],
  ] as const) {
    fake.cluster.network.enforced = enforced
    await assert.rejects(open('open', SHORT), (error) => {
      const text = String(error)
      assert.match(text, new RegExp(`a NetworkPolicy denies \\(${direction}\\) was still accepted`))
      assert.match(text, /namespace sandboxes/)
      assert.match(text, /SANDYARD_KUBERNETES_NETWORK=cluster/)
      return true
    })
    assertNothingIsLeft()
  }
})

test('a network on which nothing passes does not count as an enforcer', async () => {
  fake.cluster.network.isBroken = true
  await assert.rejects(open('broken', SHORT), /unknown.*one did not reach the other/)
  assertNothingIsLeft()
})

test('a canary whose Pods never start, or that the cluster refuses, proves nothing, and leaves nothing', async () => {
  fake.cluster.network.starts = false
  await assert.rejects(open('pending', SHORT), /unknown.*did not run/)
  assertNothingIsLeft()
  fake.cluster.network.starts = true
  fake.cluster.faults.refuse.push({ method: 'PATCH', status: 403 })
  await assert.rejects(open('forbidden'), /unknown.*Injected by the fake/)
  assertNothingIsLeft()
})

test('an earlier proof of the same data folder counts while the canary can not run, until one sees the opposite', async () => {
  await (await open('earlier')).close()
  fake.cluster.network.starts = false
  await (await open('earlier', SHORT)).close()
  Object.assign(fake.cluster.network, { starts: true, enforced: [] })
  await assert.rejects(open('earlier', SHORT), /does not enforce/)
  fake.cluster.network.starts = false
  await assert.rejects(open('earlier', SHORT), /unknown/)
})

test('an API server that fails midway, and commands that are cut off, only delay the proof', async () => {
  fake.cluster.faults.refuse.push(
    ...['GET', 'PATCH', 'POST', 'GET', 'DELETE', 'PATCH'].map((method) => ({ method, status: 503 })),
  )
  fake.cluster.faults.loseCreates = 1
  fake.cluster.network.cutCommands = 2
  const client = makeApiClient(fake.cluster.access)
  const place = { owner: 'f'.repeat(32), namespace: 'sandboxes' }
  const deps = { ...place, client, helperImage: 'helper', runtimeClass: null, newSuffix: () => 'trouble' }
  const log = makeLog('silent')
  const verdict = await runCanary({ ...deps, limits: LIMITS, clock: systemClock, log }, NEVER, tryPolicies)
  assert.deepEqual(verdict, { kind: 'enforced' })
  assert.deepEqual(fake.cluster.faults.refuse, [])
  assertNothingIsLeft()
  client.close()
})

test('what a killed worker left of its canary is removed by its next start, and that of another worker stays', async () => {
  await (await open('killed')).close()
  const owner = await readFile(join(fake.folder, 'killed', 'owner'), 'utf8')
  const other = 'f'.repeat(32)
  const client = makeApiClient(fake.cluster.access)
  for (const [name, of] of [
    ['mine', owner],
    ['others', other],
  ] as const) {
    const place = { owner: of, namespace: 'sandboxes' }
    const pod = { name, image: 'helper', runtimeClass: null }
    await client.request('POST', '/api/v1/namespaces/sandboxes/pods', makeCanaryPod(place, 'server', pod))
    await client.request('POST', policiesPath('sandboxes'), makeCanaryPolicy(place, 'server', 'closed'))
  }
  const driver = await open('killed')
  assert.deepEqual(namesOfPods(), ['others'])
  assert.deepEqual(policies(), [`${policiesPath('sandboxes')}/${canaryPolicyName(other, 'server')}`])
  fake.cluster.drop('others')
  fake.cluster.objects.delete(policies()[0] ?? '')
  client.close()
  await driver.close()
})

test('a later canary that sees policies without effect stops starts, until another one sees that they hold again', async () => {
  const verdicts: CanaryVerdict[] = [{ kind: 'enforced' }]
  const clock = makeTestClock()
  let runs = 0
  const proof = await openNetworkProof({
    dir: fake.folder,
    network: 'prove',
    namespace: 'sandboxes',
    runCanary: () => {
      runs += 1
      return Promise.resolve(verdicts.shift() ?? { kind: 'unknown', seen: 'nothing' })
    },
    clock,
    log: makeLog('silent'),
  })
  const later = async (verdict: CanaryVerdict): Promise<boolean> => {
    verdicts.push(verdict)
    const before = runs
    await waitUntil(() => {
      clock.advance(60_000)
      return runs > before
    })
    await waitUntil(() => clock.sleepers === 1)
    return proof.isProved
  }
  const stored = async () => (await readStoredProof({ dir: fake.folder, network: 'prove' }))?.kind
  assert.equal(await later({ kind: 'unknown', seen: 'the quota is full' }), true)
  assert.equal(await stored(), 'enforced')
  assert.equal(await later({ kind: 'open', seen: 'it was accepted' }), false)
  assert.equal(await later({ kind: 'unknown', seen: 'the quota is full' }), false)
  assert.equal(await stored(), 'open')
  assert.equal(await later({ kind: 'enforced' }), true)
  assert.equal(await stored(), 'enforced')
  await proof.close()
})
