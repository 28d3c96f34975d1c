import assert from 'node:assert/strict'
import { copyFile, mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { freePort } from '../support/free-port.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { runMsb } from '../support/msb.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
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
  // What the guide tells an administrator to do on each node.
  const trust = join(process.env['SANDYARD_TEST_KUBERNETES'] ?? '', 'conf/certs.d', registry)
  await mkdir(trust, { recursive: true })
  await copyFile(join(server.dataDir, 'kubernetes/registry/certificate.pem'), join(trust, 'ca.pem'))
  await writeFile(join(trust, 'hosts.toml'), `server = "https://${registry}"\nca = "${join(trust, 'ca.pem')}"\n`)
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

test('the demo image that Sandyard makes itself runs in a Pod, by the unmodified client', LIMIT, async () => {
  assert.match(await msb('run', '--label', 'sandyard.disk=run', '--memory', '64M', DEMO_IMAGE, '--', 'id'), /uid=1000/)
  await msb('create', '--name', 'demo', '--label', 'sandyard.disk=run', '--memory', '64M', DEMO_IMAGE)
  const secrets = await kubectl('get', 'secrets', '-n', 'loaded', '-o', 'jsonpath={.items[*].type}')
  assert.equal(secrets, 'kubernetes.io/dockerconfigjson')
  await msb('rm', '--force', 'demo')
  const areGone = async () => (await kubectl('get', 'secrets', '-n', 'loaded', '-o', 'name')) === ''
  await waitUntil(areGone, 60_000) // they go with their Pods
})

test('an image that was not loaded is refused with what to do', LIMIT, async () => {
  const { code, stderr } = await runMsb(server, [
    'create',
    '--name',
    'none',
    '--label',
    'sandyard.disk=run',
    'localhost/none',
  ])
  assert.notEqual(code, 0)
  assert.match(stderr, /not loaded into this worker/)
})
