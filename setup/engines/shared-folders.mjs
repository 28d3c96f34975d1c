// The provisioner of the storage class `shared`, for the cluster of the tests: the volume of a claim is a folder of the machine. It
// stands for a shared file system such as NFS: any number of Pods mount it at once, its mode is ReadWriteMany, and no kubelet sets the
// group of its files. So a folder belongs to the group 1000 from the beginning. Claims of other modes stay without a volume.
// Arguments: the machine's folder, and the name of the provisioner.
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { keepUpdating, makeLists } from './cluster-lists.mjs'

const [folder, provisioner] = process.argv.slice(2)
const pollMs = 200
const group = 1000
const mode = 'ReadWriteMany'
const list = makeLists(join(folder, 'kubeconfig'))

await keepUpdating(update, pollMs)

async function update() {
  const [classes, claims, volumes] = await Promise.all(
    ['/apis/storage.k8s.io/v1/storageclasses', '/api/v1/persistentvolumeclaims', '/api/v1/persistentvolumes'].map(list),
  )
  const own = new Set(classes.filter((one) => one.provisioner === provisioner).map(({ metadata }) => metadata.name))
  const made = new Set(volumes.map(({ metadata }) => metadata.name))
  for (const claim of claims)
    if (own.has(claim.spec.storageClassName) && !made.has(volumeOf(claim)) && isServed(claim)) make(claim)
  for (const { metadata, spec, status } of volumes)
    if (own.has(spec.storageClassName) && status.phase === 'Released') {
      rmSync(spec.hostPath.path, { recursive: true, force: true })
      kubectl(['delete', 'persistentvolume', metadata.name, '--wait=false'])
    }
}

function isServed({ spec, status, metadata }) {
  const isWaiting = status.phase === 'Pending' && metadata.deletionTimestamp === undefined
  return isWaiting && spec.accessModes.every((wanted) => wanted === mode)
}

function volumeOf({ metadata }) {
  return `shared-${metadata.uid}`
}

function make(claim) {
  const { metadata, spec } = claim
  const path = join(folder, 'shared', volumeOf(claim))
  mkdirSync(path, { recursive: true })
  chownSync(path, 0, group)
  chmodSync(path, 0o2770)
  const volume = {
    apiVersion: 'v1',
    kind: 'PersistentVolume',
    metadata: { name: volumeOf(claim) },
    spec: {
      storageClassName: spec.storageClassName,
      accessModes: [mode],
      capacity: { storage: spec.resources.requests.storage },
      persistentVolumeReclaimPolicy: 'Retain', // the controller knows no way to delete it: this process does
      claimRef: { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
      hostPath: { path, type: 'Directory' },
    },
  }
  kubectl(['create', '-f', '-'], JSON.stringify(volume))
}

function kubectl(args, input = '') {
  const { status, stderr } = spawnSync(join(folder, 'tools/kubectl'), args, { input, encoding: 'utf8' })
  if (status !== 0) console.error(stderr)
}
