import assert from 'node:assert/strict'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import type { RunOutcome } from '../../src/contract/workers/worker-protocol.ts'
import type { RunId } from '../../src/domain/ids.ts'
import type { UsePoint } from '../../src/domain/sandboxes/use-points.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import type { GuestExec } from '../../src/worker/channel/guest.ts'
import { openSandboxMetrics } from '../../src/worker/metrics/sandbox-metrics.ts'
import { makeDesiredRun } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { makeTestLogs, readAll, textOf } from '../support/logs.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../support/spec.ts'
import { waitUntil } from '../support/wait.ts'
import { describeKubernetesConformance, POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 60_000 }
const NEVER = new AbortController().signal
const PLAIN: GuestExec = { cmd: 'true', args: [], env: [], cwd: null, user: null, tty: null, rlimits: [] }
const { runtime } = DEFAULT_SPEC_FOR_TESTS

describeKubernetesConformance({
  name: 'kubernetes (real)',
  whyNot: skip === false ? null : skip,
  make: async () => {
    const namespace = await makeRealNamespace('conformance')
    const dir = join(namespace.folder, 'driver')
    return {
      open: () => openKubernetesDriver({ dir, access: namespace.access, helperImage: HELPER_IMAGE }),
      pods: () => namespace.pods(),
      remove: () => namespace.remove(),
    }
  },
})

let namespace: RealNamespace
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('driver')
  driver = await open('driver')
})
after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await namespace.remove()
})

function open(dir: string, options: Partial<Parameters<typeof openKubernetesDriver>[0]> = {}): Promise<TestDriver> {
  const { access, folder } = namespace
  return openKubernetesDriver({ dir: join(folder, dir), access, helperImage: HELPER_IMAGE, ...options })
}

async function outcomeOf(id: RunId): Promise<RunOutcome | undefined> {
  return (await driver.list()).find(({ run_id }) => run_id === id)?.outcome
}

async function run(id: RunId, script: string, more: Partial<GuestExec> = {}): Promise<string> {
  const guest = await driver.guestOf(id)
  const process = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', script], ...more })
  process.stdin.end()
  const [out] = await Promise.all([text(process.stdout), process.exited])
  return out
}

test('a sandbox is confined, and has what was asked for', LIMIT, async () => {
  const desired = makeDesiredRun({
    ...POD_SPEC,
    env: [{ key: 'PRICE', value: '$(HOME) $$5' }],
    runtime: { ...runtime, hostname: 'box', user: '4321', workdir: '/tmp', scripts: { hello: 'echo "hello $1"' } },
  })
  await driver.start(desired, NEVER)
  const id = desired.run_id
  assert.equal(await run(id, 'id -u; id -g; hostname; pwd; hello you'), '4321\n4321\nbox\n/tmp\nhello you\n')
  assert.equal(await run(id, 'printf %s "$PRICE"'), '$(HOME) $$5')
  assert.equal(await run(id, 'env | grep -c ^KUBERNETES_ || true'), '0\n')
  assert.equal(await run(id, 'ls /var/run/secrets 2>/dev/null | wc -l'), '0\n')
  const status = await run(id, 'grep -E "^(CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status')
  assert.deepEqual(
    status
      .trim()
      .split('\n')
      .map((line) => line.split(/\s+/)[1]),
    ['0000000000000000', '0000000000000000', '1', '2'],
  )
  assert.equal(await run(id, 'touch /.msb/tools/x /.msb/scripts/x 2>/dev/null || echo refused'), 'refused\n')
  // The agent starts processes that have no limits yet, so no other process may trace it.
  assert.equal(await run(id, 'cat /proc/$PPID/environ 2>/dev/null || echo refused'), 'refused\n')
  await driver.remove(id)
})

test('commands, terminals and files go over one stream', LIMIT, async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  const guest = await driver.guestOf(desired.run_id)
  const terminal = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'stty size'], tty: { rows: 30, cols: 100 } })
  assert.equal(await text(terminal.stdout), '30 100\r\n')
  const all = await Promise.all(Array.from({ length: 20 }, (_, n) => run(desired.run_id, `echo ${String(n)}`)))
  assert.deepEqual(
    all,
    Array.from({ length: 20 }, (_, n) => `${String(n)}\n`),
  )
  const files = await guest.openFiles()
  const options = {
    read: false,
    write: true,
    append: false,
    create: true,
    truncate: true,
    createNew: false,
    mode: null,
  }
  await files.openFile(1, '/tmp/written', { ...options, user: '1000' })
  await files.write(1, 0, Buffer.from('content'))
  await files.closeSlot(1)
  await files.close()
  assert.equal(await run(desired.run_id, 'cat /tmp/written'), 'content')
  const bytes = 30_000_000
  const big = await guest.exec({ ...PLAIN, cmd: 'head', args: ['-c', String(bytes), '/dev/zero'] })
  let received = 0
  for await (const piece of big.stdout) received += (piece as Buffer).length
  assert.equal(received, bytes)
  const listener = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'echo over there | nc -l -p 8000'] })
  const connected = await waitUntil(async () => {
    try {
      return await guest.connect({ host: '127.0.0.1', port: 8000 }, NEVER)
    } catch {
      return undefined
    }
  })
  assert.equal(await text(connected), 'over there\n')
  listener.signal(9)
  await driver.remove(desired.run_id)
})

test('a start takes a Pod that is ready, by a write that the API server checks', LIMIT, async () => {
  const warm = await open('warm', { warm: 1 })
  const [first, second] = [makeDesiredRun(POD_SPEC), makeDesiredRun(POD_SPEC)]
  await warm.start(first, NEVER)
  await warm.remove(first.run_id)
  await waitUntil(() => warm.pools?.()[0]?.ready === 1, 45_000)
  await warm.start(second, NEVER)
  assert.equal(warm.warmStarts?.().hit, 1)
  const names = await kubectl('get', 'pods', '-n', 'driver', '-l', `sandyard.dev/run=${second.run_id}`, '-o', 'name')
  assert.equal(names.trim().split('\n').length, 1)
  assert.doesNotMatch(names, new RegExp(second.run_id))
  const guest = await warm.guestOf(second.run_id)
  const echo = await guest.exec({ ...PLAIN, cmd: 'echo', args: ['fine'] })
  assert.equal(await text(echo.stdout), 'fine\n')
  await warm.remove(second.run_id)
  await warm.close()
})

test('what a sandbox uses is read from its kubelet', LIMIT, async () => {
  const metrics = await openSandboxMetrics({
    dir: join(namespace.folder, 'metrics'),
    retentionMs: 3_600_000,
    clock: systemClock,
    log: makeLog('silent'),
  })
  const measured = await open('measured', { metrics, usagePollMs: 500 })
  const desired = makeDesiredRun({ ...POD_SPEC, runtime: { ...runtime, metrics_sample_interval_ms: 1_000 } })
  await measured.start(desired, NEVER)
  const guest = await measured.guestOf(desired.run_id)
  const busy = await guest.exec({ ...PLAIN, cmd: 'sh', args: ['-c', 'while :; do :; done'] })
  const used = (): UsePoint | undefined => metrics.latest(null)[0]?.point
  const isBusy = (): boolean => {
    const point = used()
    return point !== undefined && point.cpuMs > 100 && point.memoryBytes > 0 && point.diskBytes !== null
  }
  await waitUntil(isBusy, 45_000)
  busy.signal(9)
  await measured.remove(desired.run_id)
  await measured.close()
  await metrics.close()
})

test('the output of a workload is in its log once, through a restart of the worker', LIMIT, async () => {
  const { logs, remove } = await makeTestLogs()
  const first = await open('logs', { logs })
  const desired = makeDesiredRun({
    ...POD_SPEC,
    runtime: {
      ...runtime,
      entrypoint: ['sh', '-c'],
      cmd: ['n=0; while [ $n -lt 12 ]; do n=$((n+1)); echo "line $n"; sleep 0.5; done; exit 3'],
    },
  })
  await first.start(desired, NEVER)
  await waitUntil(async () => textOf(await readAll(logs, desired.sandbox_id)).includes('line 3\n'), 20_000)
  await first.close()
  const second = await open('logs', { logs })
  await waitUntil(async () => (await second.list())[0]?.phase === 'ended', 30_000)
  assert.deepEqual((await second.list())[0]?.outcome, { kind: 'exited', code: 3 })
  const lines = textOf(await readAll(logs, desired.sandbox_id))
    .split('\n')
    .filter((line) => line.startsWith('line '))
  assert.deepEqual(
    lines,
    Array.from({ length: 12 }, (_, n) => `line ${String(n + 1)}`),
  )
  await second.remove(desired.run_id)
  await second.close()
  await remove()
})

test('a workload that takes too much memory is reported as such', LIMIT, async () => {
  const cmd = ['sh', '-c', 'x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done']
  const desired = makeDesiredRun({ ...POD_SPEC, runtime: { ...runtime, entrypoint: [], cmd } })
  await driver.start(desired, NEVER)
  await waitUntil(
    async () => (await driver.list()).find(({ run_id }) => run_id === desired.run_id)?.phase === 'ended',
    60_000,
  )
  const { outcome } = (await driver.list()).find(({ run_id }) => run_id === desired.run_id) ?? {}
  assert.ok(outcome?.kind === 'out_of_memory' || outcome?.kind === 'exited', JSON.stringify(outcome))
  await driver.remove(desired.run_id)
})

test(
  'a Pod that finds no node says what the scheduler says, in the log of its sandbox and as the failure',
  LIMIT,
  async () => {
    const { logs, remove } = await makeTestLogs()
    const other = await open('nowhere', { logs, startLimitMs: 10_000 })
    const resources = { ...DEFAULT_SPEC_FOR_TESTS.resources, memory_mib: 10_000_000 }
    const desired = makeDesiredRun({ ...POD_SPEC, resources })
    const reason = /0\/1 nodes are available: 1 Insufficient memory/
    const failed = assert.rejects(other.start(desired, NEVER), reason)
    await waitUntil(
      async () => /waits for a node: 0\/1 nodes/.test(textOf(await readAll(logs, desired.sandbox_id))),
      30_000,
    )
    await failed
    assert.deepEqual(
      (await other.list()).map(({ outcome }) => outcome?.kind),
      ['start_failed'],
    )
    await other.remove(desired.run_id)
    await other.close()
    await remove()
  },
)

test('a Pod that somebody deletes ends its run, and says so', LIMIT, async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  await kubectl('delete', 'pod', '-n', 'driver', `sandyard-${desired.run_id}`, '--grace-period=1')
  await waitUntil(async () => (await outcomeOf(desired.run_id)) !== undefined, 30_000)
  assert.notDeepEqual(await outcomeOf(desired.run_id), { kind: 'stopped' })
  await driver.remove(desired.run_id)
})

test('another worker of the namespace sees none of these Pods, and leaves them alone', LIMIT, async () => {
  const desired = makeDesiredRun(POD_SPEC)
  await driver.start(desired, NEVER)
  const other = await open('other')
  assert.deepEqual(await other.list(), [])
  await assert.rejects(other.start(desired, NEVER), /AlreadyExists|already exists|could not start/)
  assert.equal((await driver.list()).find(({ run_id }) => run_id === desired.run_id)?.phase, 'running')
  assert.equal(await run(desired.run_id, 'echo fine'), 'fine\n')
  await other.remove(desired.run_id)
  assert.equal(await run(desired.run_id, 'echo fine'), 'fine\n')
  await other.close()
  await driver.remove(desired.run_id)
})
