import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { collectFiles } from '../../src/worker/drivers/oci/rootfs/toolbox.ts'
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

/** Makes the namespace, and loads the helper image into the node. */
export async function makeRealNamespace(name: string): Promise<RealNamespace> {
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-real-kube-'))
  const archive = join(folder, 'helper.tar')
  await writeFile(archive, await makeHelperImage(await collectFiles(DEFAULT_OCI_SETTINGS.initBinary), HELPER_IMAGE))
  await runCommand('ctr', ['images', 'import', archive], { timeoutMs: 120_000 })
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
