import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { collectHelperFiles } from '../../src/worker/drivers/oci/rootfs/helper-files.ts'
import { makeHelperImage } from '../../src/worker/images/helper-image.ts'
import { readClusterAccess, type ClusterAccess } from '../../src/worker/kubernetes/cluster-access.ts'
import { applyObject, kubectl } from './kubernetes.ts'

/** The helper image, as the node of the cluster has it. */
export const HELPER_IMAGE = 'localhost/sandyard-helper:test'

/** A namespace of the real cluster that admits only Pods of the Pod Security Standard `restricted`. */
export type RealNamespace = {
  readonly access: ClusterAccess
  /** A folder that is deleted at the end. */
  readonly folder: string
  pods(): Promise<readonly string[]>
  remove(): Promise<void>
}

/** Loads the helper image into the node. `folder` gets its archive. */
export async function loadHelperImage(folder: string): Promise<void> {
  const archive = join(folder, 'helper.tar')
  await writeFile(
    archive,
    await makeHelperImage(await collectHelperFiles(DEFAULT_OCI_SETTINGS.initBinary), HELPER_IMAGE),
  )
  await runCommand('ctr', ['images', 'import', archive], { timeoutMs: 120_000 })
}

/** Lets the node trust the registry at an address, as the guide tells an administrator to. `certificate` is the registry's, in PEM. */
export async function trustRegistry(address: string, certificate: string): Promise<void> {
  const trust = join(process.env['SANDYARD_TEST_KUBERNETES'] ?? '', 'conf/certs.d', address)
  await mkdir(trust, { recursive: true })
  await writeFile(join(trust, 'ca.crt'), certificate)
  await writeFile(join(trust, 'hosts.toml'), `server = "https://${address}"\nca = "${join(trust, 'ca.crt')}"\n`)
}

/**
 * Makes a folder of the node a PersistentVolume of a name, which is also its class. The kubelet sets the folder's
 * group; the class `folders` of the cluster makes ones that belong to root alone.
 */
export async function makeNodeVolume(
  name: string,
  { accessMode, size }: { readonly accessMode: string; readonly size: string },
): Promise<void> {
  const path = join(process.env['SANDYARD_TEST_KUBERNETES'] ?? '', `volume-${name}`)
  await mkdir(path)
  const onNode = { key: 'kubernetes.io/hostname', operator: 'In', values: ['node'] }
  await applyObject({
    apiVersion: 'v1',
    kind: 'PersistentVolume',
    metadata: { name },
    spec: {
      storageClassName: name,
      accessModes: [accessMode],
      capacity: { storage: size },
      persistentVolumeReclaimPolicy: 'Retain',
      local: { path },
      nodeAffinity: { required: { nodeSelectorTerms: [{ matchExpressions: [onNode] }] } },
    },
  })
}

/** Makes the namespace, and loads the helper image into the node. */
export async function makeRealNamespace(name: string): Promise<RealNamespace> {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-real-kube-'))
  await loadHelperImage(folder)
  const labels = { 'pod-security.kubernetes.io/enforce': 'restricted' }
  await applyObject({ apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels } })
  const env = { host: undefined, port: undefined }
  const access = await readClusterAccess({ kubeconfig: process.env['KUBECONFIG'] ?? null, env })
  return {
    access: { ...access, namespace: name },
    folder,
    pods: async () => (await kubectl('get', 'pods', '-n', name, '-o', 'name')).split('\n').filter((pod) => pod !== ''),
    async remove() {
      await kubectl('delete', 'namespace', name, '--wait=false')
      await rm(folder, { recursive: true, force: true })
    },
  }
}

/** Lets the cluster of the tests enforce NetworkPolicies from now on, or no longer. It takes some time. */
export async function enforcePolicies(isOn: boolean): Promise<void> {
  const file = join(process.env['SANDYARD_TEST_KUBERNETES'] ?? '', 'enforce-policies')
  await (isOn ? writeFile(file, '') : rm(file, { force: true }))
}
