import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { LABELS } from '../../src/worker/drivers/kubernetes/pod.ts'
import { listAll, mustCall, type SandboxBody } from '../support/api.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { runMsb, startMsbInTerminal } from '../support/msb.ts'
import { runProgram } from '../support/program.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { loadSdk } from '../support/sdk.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { walkVolumeFiles } from '../support/volume-walk.ts'
import { waitUntil } from '../support/wait.ts'

// The program with its driver for Pods, and the unmodified public client.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 240_000 }
const IMAGE = 'localhost/box:1'
let namespace: RealNamespace
let server: RealServer

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('program')
  server = await startServer({
    SANDYARD_DRIVER: 'kubernetes',
    SANDYARD_KUBECONFIG: process.env['KUBECONFIG'] ?? '',
    SANDYARD_KUBERNETES_NAMESPACE: 'program',
    SANDYARD_KUBERNETES_HELPER_IMAGE: HELPER_IMAGE,
    SANDYARD_KUBERNETES_NETWORK: 'cluster',
    SANDYARD_KUBERNETES_VOLUME_CLASS: 'shared',
    SANDYARD_KUBERNETES_VOLUME_MODE: 'ReadWriteMany',
    SANDYARD_KUBERNETES_VOLUME_GIB: '1',
  })
})
after(async () => {
  if (skip !== false) return
  await server.close()
  await namespace.remove()
})

test('the public client creates, uses, stops, starts and removes a sandbox', LIMIT, async () => {
  const msb = async (...args: readonly string[]): Promise<string> => {
    const { code, stdout, stderr } = await runMsb(server, args)
    assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
    return stdout
  }
  await msb('create', '--name', 'box', '--label', 'sandyard.disk=run', '--memory', '64M', IMAGE)
  assert.match(await msb('exec', 'box', '--', 'id'), /uid=1000/)
  const terminal = startMsbInTerminal(server, ['exec', '-t', 'box', '--', 'sh', '-c', 'tty; stty size'])
  await terminal.shown(/\/dev\/pts\/0\s+24 80/)
  assert.equal(await terminal.ended(), 0)
  const file = join(namespace.folder, 'file')
  await writeFile(file, 'from here')
  await msb('cp', file, 'box:/tmp/file')
  assert.equal(await msb('exec', 'box', '--', 'cat', '/tmp/file'), 'from here')
  const following = startMsbInTerminal(server, ['logs', '-f', 'box'])
  await following.shown(/uid=1000/)
  await msb('stop', 'box')
  await waitUntil(async () => (await podsOfRuns()).length === 0, 30_000)
  await msb('start', 'box')
  assert.equal(await msb('exec', 'box', '--', 'sh', '-c', 'ls /tmp | wc -l'), '0\n')
  await msb('rm', '--force', 'box')
  await waitUntil(async () => (await podsOfRuns()).length === 0, 30_000)
})

test('a sandbox goes on while the program is away, and is used again afterwards', LIMIT, async () => {
  const labels = { 'sandyard.disk': 'run' }
  const resources = { memory_mib: 64 }
  const body = { name: 'lasting', image: IMAGE, labels, resources }
  const query = { start: 'true', wait_for: 'running' }
  const { id }: SandboxBody = await mustCall(server, 'create_sandbox', { query, body })
  const podsBefore = await podsOfRuns()
  await server.kill9()
  await server.start()
  const { stdout } = await runMsb(server, ['exec', 'lasting', '--', 'echo', 'still here'])
  assert.equal(stdout, 'still here\n')
  assert.deepEqual(await podsOfRuns(), podsBefore)
  await mustCall(server, 'stop_sandbox', { params: { sandbox_id: id } })
  await waitUntil(async () => (await podsOfRuns()).length === 0, 30_000)
  await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
})

test('a program that is killed at any moment leaves a Pod for each running sandbox, and no other', LIMIT, async () => {
  const delaysMs = [0, 100, 250, 500, 800, 1200, 1800]
  let name = ''
  for (const [round, delayMs] of delaysMs.entries()) {
    const removing = runMsb(server, ['rm', '--force', name]) // the kill meets its end, or the name is not there
    name = `killed-${String(round)}`
    const creating = runMsb(server, [
      'create',
      '--name',
      name,
      '--label',
      'sandyard.disk=run',
      '--memory',
      '64M',
      IMAGE,
    ])
    await systemClock.sleep(delayMs)
    await server.kill9()
    await Promise.all([creating, removing])
    await server.start()
  }
  const remaining = await settled()
  const running = remaining.filter(({ status }) => status === 'running')
  await waitUntil(async () => (await podsOfRuns()).length === running.length, 60_000)
  for (const sandbox of running)
    assert.equal((await runMsb(server, ['exec', sandbox.name, '--', 'echo', 'here'])).stdout, 'here\n')
  for (const sandbox of remaining) assert.equal((await runMsb(server, ['rm', '--force', sandbox.name])).code, 0)
  await waitUntil(async () => (await podsOfRuns()).length === 0, 60_000)
})

test(
  'the public client uses the files of a volume, without a sandbox and beside two that mount it',
  LIMIT,
  async () => {
    const sdk = await loadSdk(server)
    const fs = (await sdk.Volume.builder('files').create()).fs()
    await walkVolumeFiles(fs)
    const boxes = await Promise.all(
      ['left', 'right'].map(async (name) => {
        const builder = sdk.Sandbox.builder(name).image(IMAGE).label('sandyard.disk', 'run').memory(64)
        builder.volume('/data', (mount) => mount.named('files'))
        return await builder.create()
      }),
    )
    const [left, right] = boxes
    assert.ok(left !== undefined && right !== undefined)
    const said = await left.shell('umask 2; cat /data/docs/*; echo left >/data/left')
    assert.equal(said.stdout(), 'first', said.stderr())
    assert.equal((await right.shell('cat /data/left')).stdout(), 'left\n')
    assert.equal(await fs.readToString('left'), 'left\n')
    await fs.write('given', 'given')
    for (const box of boxes) assert.equal((await box.shell('cat /data/given')).stdout(), 'given')
    for (const name of ['left', 'right']) await sdk.Sandbox.remove(name)
    await waitUntil(async () => (await podsOfRuns()).length === 0, 60_000)
    await sdk.Volume.remove('files')
    await waitUntil(
      async () => (await kubectl('get', 'pvc', '-A', '-l', 'sandyard.dev/volume', '-o', 'name')) === '',
      60_000,
    )
  },
)

test('a sandbox whose Pod finds no node says why, and starts as soon as a node takes it', LIMIT, async () => {
  const operate = async (...args: readonly string[]): Promise<string> =>
    (await runProgram(args, { SANDYARD_DATA_DIR: server.dataDir })).output
  await kubectl('taint', 'node', 'node', 'tenant=acme:NoSchedule')
  // Its size is one that no warm Pod has.
  const create = ['create', '--name', 'waiting', '--label', 'sandyard.disk=run', '--memory', '72M', IMAGE]
  const creating = runMsb(server, create)
  try {
    const readLog = (): Promise<string> => operate('logs', 'waiting', '--system')
    const reason = /waits for a node: 0\/1 nodes are available: .*untolerated taint/
    await waitUntil(async () => reason.test(await readLog()), 60_000)
    assert.doesNotMatch(await readLog(), /acme/)
    assert.match(await operate('why', 'waiting'), /is being started on the worker[^]*sandyard logs waiting --system/)
  } finally {
    await kubectl('taint', 'node', 'node', 'tenant-')
  }
  assert.equal((await creating).code, 0)
  assert.equal((await runMsb(server, ['exec', 'waiting', '--', 'echo', 'here'])).stdout, 'here\n')
  assert.equal((await runMsb(server, ['rm', '--force', 'waiting'])).code, 0)
  await waitUntil(async () => (await podsOfRuns()).length === 0, 60_000)
})

test('what a Pod can not have is refused by name', LIMIT, async () => {
  const refused = async (body: object, field: string): Promise<void> => {
    await assert.rejects(mustCall(server, 'create_sandbox', { body: { name: 'no', image: IMAGE, ...body } }), (error) =>
      String(error).includes(field),
    )
  }
  const labels = { 'sandyard.disk': 'run' }
  await refused({}, 'lifecycle.ephemeral')
  await refused({ labels, network: { enabled: false } }, 'network.enabled')
  await refused({ labels, resources: { disk_size_mib: 64 } }, 'resources.disk_size_mib')
})

/** All sandboxes, once none of them waits for anything. */
async function settled(): Promise<readonly SandboxBody[]> {
  const isSettled = ({ status }: SandboxBody): boolean => /^(created|running|stopped|failed)$/.test(status)
  await waitUntil(async () => (await listAll(server)).every(isSettled), 60_000)
  return await listAll(server)
}

/** The Pods of runs. They are in the namespaces of their organizations. */
async function podsOfRuns(): Promise<readonly string[]> {
  const names = await kubectl('get', 'pods', '-A', '-l', LABELS.run, '-o', 'name')
  return names.split('\n').filter((name) => name !== '')
}
