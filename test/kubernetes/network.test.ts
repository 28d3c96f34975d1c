import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { TOOLS_FOLDER, toolCommand } from '../../src/contract/workers/guest-tools.ts'
import type { DesiredRun } from '../../src/contract/workers/worker-protocol.ts'
import type { NetworkPolicy, SandboxSpec } from '../../src/domain/spec/spec.ts'
import { CANARY_CONTAINER, makeCanaryPod } from '../../src/worker/drivers/kubernetes/network/canary-objects.ts'
import { CANARY_LIMITS } from '../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import { TOOLBOX_IN_IMAGE } from '../../src/worker/drivers/kubernetes/helper-image.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { applyObject, kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { enforcePolicies, HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../support/spec.ts'
import { waitUntil } from '../support/wait.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

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
  const target = await startTarget()
  const [open, other] = [`${target}:8080`, `${target}:8081`]
  const [apiServer, node] = ['10.96.0.1:443', '10.244.0.1:10250']
  const all = [apiServer, node, open, other]
  // A Pod that no policy closes reaches them all. So what a sandbox doesn't reach is closed by its policy.
  await waitUntil(async () => (await reachedFrom(TARGET, all)).length === all.length, 30_000)
  const opened = { deny: [], allow: ['10.0.0.0/8'] }
  const ports = [{ start: 8080, end: 8080 }]
  const rule = {
    direction: 'egress',
    destination: { cidr: target },
    action: 'allow',
    ports,
    protocols: ['tcp'],
  } as const
  const narrow: NetworkPolicy = { default_egress: 'deny', default_ingress: 'allow', rules: [rule] }
  for (const [network, network_ranges, expected] of [
    [{ policy: null }, { deny: [], allow: [] }, []],
    [{ enabled: false }, opened, []],
    [{ policy: narrow }, opened, [open]],
    // The operator has opened 10.0.0.0/8, but nobody opens a node.
    [{ policy: { ...narrow, default_egress: 'allow', rules: [] } }, opened, [apiServer, open, other]],
  ] as const) {
    await using sandbox = await startSandbox({ ...makeDesiredRun(specWith(network)), network_ranges })
    const reached = new Set<string>()
    // An enforcer may open the network of a Pod some time after its start.
    await waitUntil(async () => {
      for (const one of await reachedFrom(sandbox, all)) reached.add(one)
      return expected.every((one) => reached.has(one))
    }, 30_000)
    assert.deepEqual(reached, new Set<string>(expected), JSON.stringify(network))
    const own = `${await addressOf(sandbox.pod)}:8080`
    await waitUntil(async () => (await reachedFrom(sandbox, [own])).length === 1, 30_000)
    assert.deepEqual(await reachedFrom(TARGET, [own]), [])
  }
})

test('a rule for addresses of the cluster is refused by name unless the operator opened them', LIMIT, async () => {
  const rule = {
    direction: 'egress',
    destination: { group: 'private' },
    action: 'allow',
    ports: [],
    protocols: [],
  } as const
  const policy: NetworkPolicy = { default_egress: 'deny', default_ingress: 'deny', rules: [rule] }
  const run = makeDesiredRun(specWith({ policy }))
  await assert.rejects(startSandbox(run), /network\.policy\.rules\[0\]/)
  await driver?.remove(run.run_id)
})

type PodWithTools = { readonly pod: string; readonly container: string; readonly tools: string }
const TARGET: PodWithTools = { pod: 'target', container: CANARY_CONTAINER, tools: TOOLBOX_IN_IMAGE }

/** A specification of a sandbox that listens on port 8080. */
function specWith(network: Partial<SandboxSpec['network']>): Partial<SandboxSpec> {
  const { network: plainNetwork, runtime } = DEFAULT_SPEC_FOR_TESTS
  const [program = '', ...cmd] = toolCommand('canary.pl', ['listen', '8080'])
  return {
    ...POD_SPEC,
    runtime: { ...runtime, entrypoint: [program], cmd },
    network: { ...plainNetwork, enabled: true, ...network },
  }
}

async function startSandbox(run: DesiredRun): Promise<PodWithTools & AsyncDisposable> {
  const opened = driver
  if (opened === null) throw new Error('the driver is not open')
  await opened.start(run, AbortSignal.timeout(60_000))
  const dispose = (): Promise<void> => opened.remove(run.run_id)
  return { pod: `sandyard-${run.run_id}`, container: 'sandbox', tools: TOOLS_FOLDER, [Symbol.asyncDispose]: dispose }
}

/** Starts a Pod that no policy selects, which listens on ports 8080 and 8081. Resolves with its address. */
async function startTarget(): Promise<string> {
  const input = { name: TARGET.pod, image: HELPER_IMAGE, runtimeClass: null }
  const pod = makeCanaryPod({ owner: 'target', namespace: 'network' }, 'server', input) as {
    readonly metadata: object
    readonly spec: { readonly containers: readonly { readonly name: string }[] }
  }
  const second = { name: 'second', command: toolCommand('canary.pl', ['listen', '8081'], TOOLBOX_IN_IMAGE) }
  const containers = [...pod.spec.containers, ...pod.spec.containers.map((one) => ({ ...one, ...second }))]
  await applyObject({ ...pod, metadata: { ...pod.metadata, namespace: 'network' }, spec: { ...pod.spec, containers } })
  await kubectl('wait', '-n', 'network', '--for=condition=Ready', `pod/${TARGET.pod}`, '--timeout=60s')
  return await addressOf(TARGET.pod)
}

async function addressOf(pod: string): Promise<string> {
  return await kubectl('get', 'pod', '-n', 'network', pod, '-o', 'jsonpath={.status.podIP}')
}

/** Which of these, as ADDRESS:PORT, a Pod can connect to. */
async function reachedFrom(
  { pod, container, tools }: PodWithTools,
  all: readonly string[],
): Promise<readonly string[]> {
  const reaches = async (one: string): Promise<boolean> => {
    try {
      const [address = '', port = ''] = one.split(':')
      const command = toolCommand('canary.pl', ['reach', address, port, '1'], tools)
      await kubectl('exec', '-n', 'network', pod, '-c', container, '--', ...command)
      return true
    } catch (error) {
      if (/exit code 3/.test(String(error))) return false
      throw error
    }
  }
  const results = await Promise.all(all.map(reaches))
  return all.filter((_, index) => results[index] === true)
}
