import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { runCommand } from '../../src/lib/run-command.ts'
import { freePort } from '../support/free-port.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { runMsb } from '../support/msb.ts'
import { runProgram } from '../support/program.ts'
import { HELPER_IMAGE, makeRealNamespace, trustRegistry, type RealNamespace } from '../support/real-kubernetes.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { startServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

// Images that were loaded into Sandyard, pulled by the containerd of a real cluster from the registry of the worker.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 240_000 }
/** The address of the node, in whose network this process runs. */
const NODE = '10.244.0.1'
let namespace: RealNamespace
let server: RealServer

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace('loaded')
  const registry = `${NODE}:${String(await freePort())}`
  server = await startServer({
    SANDYARD_DRIVER: 'kubernetes',
    SANDYARD_KUBECONFIG: process.env['KUBECONFIG'] ?? '',
    SANDYARD_KUBERNETES_NAMESPACE: 'loaded',
    SANDYARD_KUBERNETES_NAMESPACES: 'shared',
    SANDYARD_KUBERNETES_HELPER_IMAGE: HELPER_IMAGE,
    SANDYARD_KUBERNETES_NETWORK: 'cluster',
    SANDYARD_KUBERNETES_REGISTRY: registry,
    SANDYARD_KUBERNETES_REGISTRY_LISTEN: registry,
  })
  await trustRegistry(registry, await readFile(join(server.dataDir, 'kubernetes/registry/certificate.pem'), 'utf8'))
})
after(async () => {
  if (skip !== false) return
  await server.close()
  await namespace.remove()
})

async function msb(...args: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await runMsb(server, args)
  assert.equal(code, 0, `msb ${args.join(' ')}: ${stderr}`)
  return stdout
}

/** Runs `sandyard image …` on the data folder of the server, and returns what it prints. */
async function manage(...args: readonly string[]): Promise<string> {
  const env = { SANDYARD_DATA_DIR: server.dataDir, SANDYARD_DRIVER: 'kubernetes' }
  const { code, output } = await runProgram(['image', ...args], env)
  assert.equal(code, 0, `image ${args.join(' ')}: ${output}`)
  return output
}

/** The value of a metric of the worker. */
async function metric(series: string): Promise<number> {
  const text = await (await fetch(new URL('/metrics', server.url))).text()
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${series} `))
      ?.slice(series.length),
  )
}

/** The names of the Pods that a selector selects. */
async function podsOf(selector: string): Promise<readonly string[]> {
  const text = await kubectl('get', 'pods', '-n', 'loaded', '-l', selector, '-o', 'name')
  return text.split('\n').filter((name) => name !== '')
}

/** The Secret of a Pod, which `kubectl` calls `pod/NAME`. */
const secretOf = (pod = ''): string => pod.replace('pod/', '')

const OF_RUN = 'sandyard.dev/run'
const OPTIONS = ['--label', 'sandyard.disk=run', '--memory', '64M']

test(
  'the demo image that Sandyard makes itself runs in a Pod, by the unmodified client, and is warm the next time',
  LIMIT,
  async () => {
    assert.match(await msb('run', ...OPTIONS, DEMO_IMAGE, '--', 'id'), /uid=1000/)
    await waitUntil(async () => (await metric('sandyard_machine_pool_ready{pool="warm_sandboxes"}')) === 1, 60_000)
    const [warm] = await podsOf(`sandyard.dev/owner,!${OF_RUN}`)
    await msb('create', '--name', 'demo', ...OPTIONS, DEMO_IMAGE)
    assert.ok((await podsOf(OF_RUN)).includes(String(warm)), 'the sandbox has the Pod that was ready')
    assert.match(await msb('exec', 'demo', '--', 'id'), /uid=1000/)
    const secret = await kubectl('get', 'secret', secretOf(warm), '-n', 'loaded', '-o', 'jsonpath={.type}')
    assert.equal(secret, 'kubernetes.io/dockerconfigjson')
    const volumes = await kubectl('get', 'pod', secretOf(warm), '-n', 'loaded', '-o', 'jsonpath={.spec.volumes}')
    assert.equal(volumes, '', 'the toolbox is a layer of the image')
    await msb('rm', '--force', 'demo')
    const isGone = async () => !(await kubectl('get', 'secrets', '-n', 'loaded', '-o', 'name')).includes(secretOf(warm))
    await waitUntil(isGone, 60_000) // it goes with its Pod
  },
)

test(
  'an image of the cluster that is loaded into the worker runs, and is refused by name once it is removed',
  LIMIT,
  async () => {
    const archive = join(namespace.folder, 'box.tar')
    // Through the transfer API, `ctr` may end before the end of the archive is in the file: seen under load.
    await runCommand('ctr', ['images', 'export', '--local', archive, 'localhost/box:1'], { timeoutMs: 120_000 })
    assert.match(await manage('load', archive, 'localhost/tool'), /^localhost\/tool sha256:/)
    assert.match(await manage('list'), /^localhost\/tool:latest\t/m)
    assert.equal(await msb('run', ...OPTIONS, 'localhost/tool', '--', 'echo', 'loaded'), 'loaded\n')
    assert.match(await manage('remove', 'localhost/tool'), /^localhost\/tool is removed/)
    const { code, stderr } = await runMsb(server, ['run', ...OPTIONS, 'localhost/tool', '--', 'true'])
    assert.notEqual(code, 0)
    assert.match(stderr, /localhost\/tool.*not loaded into this worker/s)
  },
)

test('an image that was not loaded is refused with what to do', LIMIT, async () => {
  const { code, stderr } = await runMsb(server, ['create', '--name', 'none', ...OPTIONS, 'localhost/none'])
  assert.notEqual(code, 0)
  assert.match(stderr, /not loaded into this worker/)
})
