import assert from 'node:assert/strict'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { asId, type OrgId } from '../../src/domain/ids.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makeLog } from '../../src/lib/log.ts'
import { sweepNamespaces } from '../../src/worker/drivers/kubernetes/namespaces/sweep-namespaces.ts'
import { makeApiClient } from '../../src/worker/kubernetes/api-client.ts'
import { isApiError } from '../../src/worker/kubernetes/api-error.ts'
import type { ClusterAccess } from '../../src/worker/kubernetes/cluster-access.ts'
import { makeDesiredRun, runVolume } from '../support/desired-run.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { enforcePolicies, HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { waitUntil } from '../support/wait.ts'
import { POD_SPEC } from '../worker/drivers/kubernetes-conformance.ts'

// A worker with the rights of packaging/kubernetes/driver.yaml alone.

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 180_000 }
const NEVER = new AbortController().signal
const MANIFESTS = join(import.meta.dirname, '../../packaging/kubernetes/driver.yaml')
let namespace: RealNamespace
let access: ClusterAccess
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  await kubectl('apply', '-f', MANIFESTS)
  namespace = await makeRealNamespace('sandboxes')
  await enforcePolicies(true)
  const token = (await kubectl('create', 'token', '-n', 'sandboxes', 'sandyard-driver')).trim()
  access = { ...namespace.access, certificate: null, readToken: () => Promise.resolve(token) }
  driver = await open()
})
function open(): Promise<TestDriver> {
  return openKubernetesDriver({
    dir: join(namespace.folder, 'driver'),
    access,
    helperImage: HELPER_IMAGE,
    namespaceMode: 'organization',
    network: 'prove',
    claimSettings: { storageClass: 'folders', mode: 'ReadWriteOnce', sizeGib: 1 },
  })
}

async function reopen(before: TestDriver): Promise<TestDriver> {
  await before.close()
  return await open()
}

after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  await enforcePolicies(false)
  await namespace.remove()
  await kubectl('delete', 'namespace', '--ignore-not-found', '--wait=false', 'sandboxes-one', 'sandboxes-two')
})

test(
  'the rights of driver.yaml suffice for a namespace of each organization, which the cluster bounds',
  LIMIT,
  async () => {
    const org_limits = { max_running: 1, max_vcpus_per_sandbox: 1, max_memory_mib_per_sandbox: 64 }
    const ofOrg = (org: string) => ({ ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>(org), org_limits })
    const [one, more, two] = [ofOrg('one'), ofOrg('one'), ofOrg('two')]
    await driver.start(one, NEVER)
    await assert.rejects(driver.start(more, NEVER), /exceeded quota/)
    await driver.start(two, NEVER)
    for (const { org_id, run_id } of [one, two])
      assert.match(
        await kubectl('get', 'pods', '-n', `sandboxes-${org_id}`, '-o', 'name'),
        new RegExp(`^pod/sandyard-${run_id}\n$`),
      )
    const guest = await driver.guestOf(two.run_id)
    const plain = { env: [], cwd: null, user: null, tty: null, rlimits: [] }
    assert.equal(await text((await guest.exec({ cmd: 'echo', args: ['fine'], ...plain })).stdout), 'fine\n')
    await driver.remove(two.run_id) // the node has two cores
    await driver.start({ ...ofOrg('one'), org_limits: { ...org_limits, max_running: 2 } }, NEVER)
    const privileged = '--overrides={"spec":{"hostNetwork":true}}'
    await assert.rejects(kubectl('run', 'bad', '-n', 'sandboxes-one', '--image=x', privileged), /PodSecurity/)
  },
)

test('a credential of a registry is a Secret that goes with its Pod', LIMIT, async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  const registry_auth = { username: 'puller', password: 'word' }
  const desired = { ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>('two'), registry_auth }
  await driver.start(desired, NEVER)
  const secret = ['-n', 'sandboxes-two', `secret/sandyard-${desired.run_id}`] as const
  const owner = 'jsonpath={.type} {.metadata.ownerReferences[0].name}'
  assert.equal(
    await kubectl('get', ...secret, '-o', owner),
    `kubernetes.io/dockerconfigjson sandyard-${desired.run_id}`,
  )
  await driver.remove(desired.run_id)
  await assert.rejects(kubectl('get', ...secret), /NotFound/)
})

test('a volume is a claim in the namespace of its organization, and goes with these rights alone', LIMIT, async () => {
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  const org_id = asId<OrgId>('two')
  const volume = { ...runVolume('data'), org_id }
  const options = { readonly: false, noexec: false, nosuid: false, nodev: false }
  const owners = { stat_virtualization: 'strict', host_permissions: 'private' } as const
  const mounts = [{ type: 'named', name: 'data', guest: '/data', options, ...owners }] as const
  const desired = { ...makeDesiredRun({ ...POD_SPEC, mounts }), org_id, volumes: [volume] }
  await driver.start(desired, NEVER)
  const names = await kubectl('get', 'pvc', '-n', 'sandboxes-two', '-o', 'name')
  assert.equal(names, 'persistentvolumeclaim/sandyard-volume-data\n')
  assert.equal((await driver.volumes?.measure())?.length, 1)
  await driver.remove(desired.run_id)
  await driver.volumes?.remove(volume)
  assert.equal(await kubectl('get', 'pvc', '-n', 'sandboxes-two', '-o', 'name'), '')
})

test('a worker with these rights makes nothing in other namespaces, and reads no logs there', LIMIT, async () => {
  const client = makeApiClient(access)
  const refused = async (...request: Parameters<typeof client.request>): Promise<void> => {
    await assert.rejects(client.request(...request), (error) => isApiError(error, 403, 422))
  }
  const metadata = { name: 'mine' }
  await refused('POST', '/api/v1/namespaces', { metadata })
  await refused('POST', '/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings', {
    metadata,
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'sandyard-sandboxes' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: 'mine' }],
  })
  await refused('POST', '/apis/rbac.authorization.k8s.io/v1/namespaces/sandboxes-one/rolebindings', {
    metadata,
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'cluster-admin' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: 'mine' }],
  })
  await refused('POST', '/api/v1/namespaces/kube-system/pods', {
    metadata,
    spec: { containers: [{ name: 'a', image: 'a' }] },
  })
  await refused('GET', '/api/v1/namespaces/kube-system/pods/any/log')
  await refused('GET', '/api/v1/secrets')
  await refused('GET', '/api/v1/persistentvolumeclaims')
  await refused('GET', '/api/v1/namespaces/kube-system/persistentvolumeclaims')
  client.close()
})

test(
  'a namespace that nobody uses is deleted, but none with an object of others, and none of others',
  LIMIT,
  async () => {
    for (const { run_id } of await driver.list()) await driver.remove(run_id)
    const ofOrg = (org: string) => ({ ...makeDesiredRun(POD_SPEC), org_id: asId<OrgId>(org) })
    for (const run of [ofOrg('one'), ofOrg('two')]) {
      await driver.start(run, NEVER)
      await driver.remove(run.run_id)
    }
    await kubectl('create', 'configmap', 'foreign', '-n', 'sandboxes-one')
    const client = makeApiClient(access)
    const nextMonth = { ...systemClock, now: () => new Date(Date.now() + 30 * 86_400_000) }
    const deps = { client, base: 'sandboxes', idleMs: 7 * 86_400_000, log: makeLog('silent') }
    assert.deepEqual(await sweepNamespaces({ ...deps, clock: systemClock }, NEVER), [])
    const counts = ['get', 'quota', 'sandyard-objects', '-n', 'sandboxes-one', '-o', 'jsonpath={.status.used}'] as const
    await waitUntil(async () => (await kubectl(...counts)).includes('"count/configmaps":"2"'), 60_000)
    // The Secret and the Pods of earlier sandboxes are counted until the cluster has deleted them.
    const deleted: string[] = []
    await waitUntil(async () => {
      deleted.push(...(await sweepNamespaces({ ...deps, clock: nextMonth }, NEVER)))
      return deleted.length > 0
    }, 60_000)
    assert.deepEqual(deleted, ['two'])
    const again = ofOrg('two')
    driver = await reopen(driver) // another process: this one has not noticed
    await driver.start(again, NEVER)
    assert.equal((await driver.list()).find(({ run_id }) => run_id === again.run_id)?.phase, 'running')
    await kubectl('get', 'namespace', 'sandboxes-one')
    await kubectl('create', 'namespace', 'sandboxes-foreign')
    for (const name of ['sandboxes', 'sandboxes-foreign'])
      await assert.rejects(client.request('DELETE', `/api/v1/namespaces/${name}`), (error) =>
        isApiError(error, 403, 422),
      )
    await kubectl('delete', 'namespace', 'sandboxes-foreign', '--wait=false')
    client.close()
  },
)
