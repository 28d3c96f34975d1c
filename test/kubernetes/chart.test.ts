import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, before, suite, test, type TestContext } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { mustCall, type SandboxBody } from '../support/api.ts'
import { installChart, type InstalledChart, type Pod } from '../support/installed-chart.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { runMsb } from '../support/msb.ts'
import {
  enforcePolicies,
  HELPER_IMAGE,
  loadHelperImage,
  makeNodeVolume,
  trustRegistry,
} from '../support/real-kubernetes.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { underUpgradeLoad, type UpgradeLoad } from '../support/upgrade-load.ts'
import { waitUntil } from '../support/wait.ts'

// The Helm chart, installed with the image of packaging/ on a real cluster: two servers, and a worker on the only node.

const LIMIT_MS = 180_000
const MACHINE = process.env['SANDYARD_TEST_KUBERNETES'] ?? ''

suite('the installed chart', { skip: whyNoKubernetes(), timeout: 25 * 60_000 }, () => {
  let chart: InstalledChart

  before(async () => {
    chart = await installChart(MACHINE)
  })
  after(() => chart.close())

  test('the worker of the labelled node joins by the token of its Pod, under the name of the node', async () => {
    assert.equal((await chart.pods('server')).length, 2)
    assert.equal((await chart.pods('worker')).length, 1)
    await waitUntil(async () => (await workerState()) === 'live', LIMIT_MS)
  })

  test('the unmodified client runs a command, reads logs, stops and removes through a forwarded Service', async () => {
    await throughService(async (env) => {
      assert.match(await msb(['run', DEMO_IMAGE, '--', 'id'], env), /^uid=0/)
      await msb(['run', '-d', '--name', 'walk', DEMO_IMAGE, '--', 'sh', '-c', 'exec sleep 600'], env)
      assert.equal(await msb(['exec', 'walk', '--', 'echo', 'here'], env), 'here\n')
      await msb(['run', '-d', '--name', 'talk', DEMO_IMAGE, '--', 'sh', '-c', 'echo logged; exec sleep 600'], env)
      assert.match(await msb(['logs', '-f', 'talk'], env), /logged/)
      await msb(['stop', 'walk'], env)
      await msb(['rm', '--force', 'walk', 'talk'], env)
    })
  })

  test('an upgrade of the servers loses no create, fails no command, and lets sandboxes run on', async (t) => {
    const steady = await create('steady')
    await msb(['exec', 'steady', '--', 'sh', '-c', 'echo kept > /root/file'])
    const [worker, servers] = [uids(await chart.pods('worker')), uids(await chart.pods('server'))]
    const load = await underUpgradeLoad(chart, { prefix: 'first', steady: 'steady' }, () =>
      chart.upgrade('server.podAnnotations.upgrade=now'),
    )
    await waitUntil(async () => (await chart.pods('server')).length === 2, LIMIT_MS) // those before have ended
    report(t, load)
    assert.deepEqual(load.failedCreates, [])
    assert.deepEqual(load.failedExecs, [])
    const newServers = uids((await chart.pods('server')).filter(({ metadata }) => !metadata.deletionTimestamp))
    assert.deepEqual(newServers.filter((uid) => servers.includes(uid)), [], 'the servers were replaced') // prettier-ignore
    assert.deepEqual(uids(await chart.pods('worker')), worker, 'the worker was not')
    await assertNothingLost(load)
    const { status, started_at } = await read(steady.id)
    assert.deepEqual([status, started_at], ['running', steady.started_at])
  })

  test('an upgrade of the workers loses no create, and sandboxes that it stopped start again with their disks', async (t) => {
    const worker = uids(await chart.pods('worker'))
    const load = await underUpgradeLoad(chart, { prefix: 'second', steady: null }, async () => {
      await chart.upgrade('workers.env.SANDYARD_LOG_LEVEL=debug')
      await waitUntil(async () => (await workerState()) === 'live', LIMIT_MS)
    })
    report(t, load)
    assert.notDeepEqual(uids(await chart.pods('worker')), worker)
    assert.deepEqual(load.failedCreates, [])
    await assertNothingLost(load)
    assert.equal(await msb(['exec', 'steady', '--', 'cat', '/root/file']), 'kept\n')
  })

  test('a worker of the chart whose sandboxes are Pods has no privileges, proves the network, and runs the demo image that it serves; its sandboxes outlive its Pod', async (t) => {
    await loadHelperImage(MACHINE)
    await enforcePolicies(true)
    t.after(() => enforcePolicies(false))
    await makeNodeVolume('driver', { accessMode: 'ReadWriteOncePod', size: '10Gi' })
    await chart.upgrade(
      'workers.enabled=false',
      'driver.enabled=true',
      `driver.helperImage=${HELPER_IMAGE}`,
      'driver.storage.class=driver',
      'driver.namespace=boxes',
      'driver.resources.requests.cpu=50m',
      // The enforcer of the tests tracks no connections, so it would drop the answers that the chart's own Pods get.
      'networkPolicies=false',
    )
    await waitUntil(async () => (await workerState('cloud-driver-0')) === 'live', LIMIT_MS)
    // The worker that the upgrade has ended takes runs until its lease is over.
    await waitUntil(async () => (await workerState('node')) !== 'live', LIMIT_MS)
    const restricted = ['label', 'namespace', 'cloud', 'pod-security.kubernetes.io/enforce=restricted']
    const { stderr } = await runCommand('kubectl', [...restricted, '--overwrite', '--dry-run=server'], {
      timeoutMs: LIMIT_MS,
    })
    assert.doesNotMatch(stderr, /cloud-driver|cloud-server/, 'the standard `restricted` admits its Pod')

    const host = await chart.kubectl('get', 'service', 'cloud-driver', '-o', 'jsonpath={.spec.clusterIP}')
    const file = '/var/lib/sandyard/worker/kubernetes/registry/certificate.pem'
    await trustRegistry(`${host}:5443`, await chart.kubectl('exec', 'cloud-driver-0', '--', 'cat', file))
    const options = ['--label', 'sandyard.disk=run', '--memory', '64M']
    await throughService(async (env) => {
      assert.match(await msb(['run', ...options, DEMO_IMAGE, '--', 'id'], env), /^uid=1000/)
      await msb(['run', '-d', '--name', 'outlives', ...options, DEMO_IMAGE, '--', 'sh', '-c', 'exec sleep 600'], env)
      await msb(['exec', 'outlives', '--', 'sh', '-c', 'echo kept > /tmp/file'], env)
      await chart.kubectl('delete', 'pod', 'cloud-driver-0') // and waits until it has ended, as an upgrade does
      // A stop would have deleted the sandbox's Pod with the file.
      const readFile = () => runMsb(chart, ['exec', 'outlives', '--', 'cat', '/tmp/file'], { env })
      await waitUntil(async () => (await readFile()).stdout === 'kept\n', LIMIT_MS)
      await msb(['rm', '--force', 'outlives'], env)
    })
    const pods = await kubectl('get', 'namespaces', '-l', 'sandyard.dev/organization', '-o', 'name')
    assert.match(pods, /^namespace\/boxes-/, 'the organization got a namespace of its own')
  })

  /** Every created sandbox is there, and those that were to start have started once. */
  async function assertNothingLost({ created }: UpgradeLoad): Promise<void> {
    assert.ok(created.length >= 5, 'the load did something')
    for (const id of created) {
      await waitUntil(async () => !/pending|starting/.test((await read(id)).status), LIMIT_MS)
      const { status, status_reason } = await read(id)
      assert.match(status, /^(created|running|stopped)$/, String(status_reason))
    }
  }

  /** Makes the variables with which a client uses the Service through `kubectl port-forward`. */
  async function throughService(use: (env: Readonly<Record<string, string>>) => Promise<void>): Promise<void> {
    const port = '18443'
    const forward = spawn('kubectl', ['--namespace', 'cloud', 'port-forward', 'service/cloud-server', `${port}:443`], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      await once(forward.stdout, 'data')
      await use({ MSB_API_URL: `https://localhost:${port}` })
    } finally {
      forward.kill()
    }
  }

  async function msb(args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<string> {
    const { code, stdout, stderr } = await runMsb(chart, args, { env })
    assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
    return stdout
  }

  function create(name: string): Promise<SandboxBody> {
    const body = { name, image: DEMO_IMAGE, resources: { vcpus: 1, memory_mib: 64, disk_size_mib: 64 } }
    return mustCall(chart, 'create_sandbox', { query: { start: 'true', wait_for: 'running' }, body })
  }

  function read(id: string): Promise<SandboxBody> {
    return mustCall(chart, 'get_sandbox', { params: { sandbox_id: id } })
  }

  /** The state of a worker, by default that of the node, as an operator sees it. */
  async function workerState(of = 'node'): Promise<string | undefined> {
    const text = await chart.kubectl('exec', 'deployment/cloud-server', '--', 'sandyard', 'worker', 'list', '--json')
    const workers = JSON.parse(text) as readonly { readonly name: string; readonly state: string }[]
    return workers.find(({ name }) => name === of)?.state
  }
})

function uids(pods: readonly Pod[]): readonly string[] {
  return pods.map(({ metadata }) => metadata.uid).toSorted()
}

function report(t: TestContext, load: UpgradeLoad): void {
  const { created, failedCreates, unanswered, execs, failedExecs, slowestCreateMs } = load
  const counts = `${String(created.length)} creates (${String(failedCreates.length)} failed, ${String(unanswered)} unanswered, the slowest in ${slowestCreateMs.toFixed(0)} ms)`
  t.diagnostic(`during the upgrade: ${counts}, ${String(execs)} commands (${String(failedExecs.length)} failed)`)
}
