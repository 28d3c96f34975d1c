import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import type { AccessMode } from '../../src/worker/drivers/kubernetes/claim.ts'
import { openKubernetesDriver, type TestDriver } from '../support/kubernetes-driver.ts'
import { applyObject, kubectl, whyNoKubernetes } from '../support/kubernetes.ts'
import { HELPER_IMAGE, makeRealNamespace, type RealNamespace } from '../support/real-kubernetes.ts'
import { runScript, runWithVolume, VOLUME, VOLUME_KEY } from '../support/volume-runs.ts'
import { waitUntil } from '../support/wait.ts'
import { contentFrom, textOf } from '../worker/volumes/volume-folder.ts'

// Claims that any number of Pods mount at once. The class `shared` of the cluster provisions them (setup/engines/shared-folders.mjs).

const skip = whyNoKubernetes()
const LIMIT = { skip, timeout: 90_000 }
const NEVER = new AbortController().signal
const NAMESPACE = 'shared-volumes'
const CLASS = 'shared'
const POLICY = 'refuse-shared'
let namespace: RealNamespace
let driver: TestDriver

before(async () => {
  if (skip !== false) return
  namespace = await makeRealNamespace(NAMESPACE)
  driver = await open('driver')
})
after(async () => {
  if (skip !== false) return
  for (const { run_id } of await driver.list()) await driver.remove(run_id)
  await driver.close()
  for (const kind of ['validatingadmissionpolicybindings', 'validatingadmissionpolicies'])
    await kubectl('delete', kind, POLICY, '--ignore-not-found')
  await namespace.remove()
})

function open(
  folder: string,
  { mode = 'ReadWriteMany', ...options }: { readonly mode?: AccessMode; readonly startLimitMs?: number } = {},
): Promise<TestDriver> {
  return openKubernetesDriver({
    dir: join(namespace.folder, folder),
    access: namespace.access,
    helperImage: HELPER_IMAGE,
    claimSettings: { storageClass: CLASS, mode, sizeGib: 1 },
    ...options,
  })
}

/** Deletes the volume, again and again as a worker does: the cluster lets go of a claim some time after its last Pod. */
async function removeVolume({ volumes }: TestDriver): Promise<void> {
  assert.ok(volumes)
  const remove = (): Promise<boolean> =>
    volumes.remove(VOLUME_KEY).then(
      () => true,
      () => false,
    )
  await waitUntil(remove, 30_000)
}

test(
  'sandboxes that start at once share a volume, and so do clients, wherever the cluster puts them',
  LIMIT,
  async () => {
    assert.ok(driver.volumes)
    const runs = [runWithVolume(), runWithVolume({}, '4321')] as const
    await Promise.all(runs.map((run) => driver.start(run, NEVER)))
    const [one, other] = runs.map(
      ({ run_id }) =>
        (script: string) =>
          runScript(driver, run_id, script),
    )
    assert.ok(one !== undefined && other !== undefined)
    assert.equal(await one('umask 2; echo one >/data/one && cat /data/one'), 'one\n')
    assert.equal(
      await other('echo other >>/data/one && umask 2 && echo other >/data/other && cat /data/one'),
      'one\nother\n',
    )
    assert.equal(await one('cat /data/other'), 'other\n')

    const files = await driver.volumes.openFiles(VOLUME)
    assert.equal(await textOf(files, '/other'), 'other\n')
    await files.write('/given', contentFrom('given'))
    assert.equal((await one('cat /data/given')) + (await other('cat /data/given')), 'givengiven')

    const pods = await kubectl('-n', NAMESPACE, 'get', 'pods', '-o', 'jsonpath={range .items[*]}{.metadata.labels}[{.spec.affinity}]{"\\n"}{end}') // prettier-ignore
    const lines = pods.trim().split('\n')
    assert.equal(lines.filter((line) => line.includes('sandyard.dev/volume-data')).length, 3, pods)
    assert.ok(lines.every((line) => line.endsWith('[]')), `a Pod has an affinity: ${pods}`) // prettier-ignore
    const claim = ['-n', NAMESPACE, 'pvc/sandyard-volume-data'] as const
    assert.equal(await kubectl('get', ...claim, '-o', 'jsonpath={.status.accessModes}'), '["ReadWriteMany"]')

    for (const { run_id } of runs) await driver.remove(run_id)
    const third = runWithVolume()
    await driver.start(third, NEVER)
    assert.equal(await runScript(driver, third.run_id, 'cat /data/one'), 'one\nother\n')
    await driver.remove(third.run_id)
    await removeVolume(driver)
    await assert.rejects(kubectl('get', ...claim), /NotFound/)
  },
)

test(
  'a start whose class makes no volume of the mode says so, and leaves a claim that can be removed',
  LIMIT,
  async () => {
    const other = await open('unserved', { mode: 'ReadWriteOnce', startLimitMs: 10_000 })
    const desired = runWithVolume()
    await assert.rejects(other.start(desired, NEVER), /in time: .*unbound immediate PersistentVolumeClaims/)
    await other.remove(desired.run_id)
    await removeVolume(other)
    await assert.rejects(kubectl('get', '-n', NAMESPACE, 'pvc/sandyard-volume-data'), /NotFound/)
    await other.close()
  },
)

test('a worker does not start if the cluster refuses the mode of its class', LIMIT, async () => {
  const rule = {
    expression: "!('ReadWriteMany' in object.spec.accessModes)",
    message: 'volumes are not shared here',
  }
  const api = { apiVersion: 'admissionregistration.k8s.io/v1', metadata: { name: POLICY } }
  const resources = [{ apiGroups: [''], apiVersions: ['v1'], resources: ['persistentvolumeclaims'], operations: ['CREATE'] }] // prettier-ignore
  const matchConstraints = { resourceRules: resources }
  await applyObject({ ...api, kind: 'ValidatingAdmissionPolicy', spec: { matchConstraints, validations: [rule] } })
  const namespaceSelector = { matchLabels: { 'kubernetes.io/metadata.name': NAMESPACE } }
  const spec = { policyName: POLICY, validationActions: ['Deny'], matchResources: { namespaceSelector } }
  await applyObject({ ...api, kind: 'ValidatingAdmissionPolicyBinding', spec })
  let message = 'it starts'
  const start = async (): Promise<boolean> => {
    try {
      await (await open('refused')).close()
      return false // the API server doesn't know the policy yet
    } catch (error) {
      message = String(error)
      return true
    }
  }
  await waitUntil(start, 60_000)
  assert.match(message, /refuses .+ the class shared \(SANDYARD_KUBERNETES_VOLUME_CLASS\) and the mode ReadWriteMany \(SANDYARD_KUBERNETES_VOLUME_MODE\)/) // prettier-ignore
  assert.match(message, /volumes are not shared here/)
})
