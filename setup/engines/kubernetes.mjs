// A real Kubernetes of one node in a machine of its own (machine.mjs), without a way to the internet. kubernetes-services.mjs stands in
// for kube-proxy and DNS. network-policies.mjs enforces NetworkPolicies while a test asks for it, and nothing does otherwise.
// shared-folders.mjs provisions volumes that any number of Pods mount.
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { makeCertificates } from './kubernetes-certificates.mjs'
import { startMachine, runInMachine, waitFor } from './machine.mjs'

const subnet = '10.244.0'
const node = `${subnet}.1`
const bridge = 'kube0'
/** The addresses of the Service `kubernetes`, where the API server itself listens, and of the DNS server. */
const apiService = '10.96.0.1'
const dns = '10.96.0.10'
const url = `https://${apiService}`
const services = fileURLToPath(new URL('kubernetes-services.mjs', import.meta.url))
const policies = fileURLToPath(new URL('network-policies.mjs', import.meta.url))
const sharedFolders = fileURLToPath(new URL('shared-folders.mjs', import.meta.url))
const sharedProvisioner = 'sandyard.test/shared-folders'
const partLimitMs = 120_000

/**
 * Starts a cluster from the folder of `ensureKubernetesPrograms`. The machine that it returns has the files `kubeconfig` and
 * `tools/kubectl`, and `tools/ctr` for its containerd. They work in the machine's network. Images of `images` (archives) are loaded.
 */
export async function startKubernetes(programs, { images = [] } = {}) {
  const machine = await startMachine(programs)
  try {
    const folders = prepare(machine, programs)
    makeCgroups(machine)
    startControlPlane(machine, folders)
    const kubectl = (...args) => spawnSync('nsenter', [`--net=/proc/${machine.pid}/ns/net`, join(machine.folder, 'tools/kubectl'), ...args], { encoding: 'utf8' }) // prettier-ignore
    await waitFor(machine, 'apiserver', partLimitMs, () => kubectl('get', '--raw', '/readyz').status === 0)
    startNode(machine, folders)
    machine.part('services', `exec ${process.execPath} ${services} ${machine.folder}/kubeconfig ${dns}`)
    machine.part('policies', `exec ${process.execPath} ${policies} ${machine.folder} ${subnet}.0/24 ${node}`)
    machine.part('shared-folders', `exec ${process.execPath} ${sharedFolders} ${machine.folder} ${sharedProvisioner}`)
    const ctr = join(machine.folder, 'tools/ctr')
    await waitFor(machine, 'containerd', partLimitMs, () => spawnSync(ctr, ['version']).status === 0)
    startKubelet(machine, folders)
    const loaded = [join(programs, 'pause.tar'), join(programs, 'box.tar'), ...images]
    for (const archive of loaded) runInMachine(machine, ctr, ['images', 'import', archive])
    await waitFor(machine, 'kubelet', partLimitMs, () => isSchedulable(kubectl('get', 'node', 'node', '-o', 'json')))
    await waitFor(machine, 'controllers', partLimitMs, () => kubectl('get', 'serviceaccount', 'default').status === 0)
    for (const object of classes) apply(machine, object)
    return machine
  } catch (error) {
    await machine.close()
    throw error
  }
}

/** The variables of programs that use the cluster of a machine: `kubectl` and `ctr` are on their path. */
export function environmentOf(folder) {
  return {
    KUBECONFIG: join(folder, 'kubeconfig'),
    PATH: [join(folder, 'tools'), process.env.PATH].join(delimiter),
    SANDYARD_TEST_KUBERNETES: folder,
  }
}

/** A second runtime class with the same runtime, and classes of volumes: of folders of the node, and of folders that all Pods share. */
const classes = [
  { apiVersion: 'node.k8s.io/v1', kind: 'RuntimeClass', metadata: { name: 'other' }, handler: 'other' },
  {
    apiVersion: 'storage.k8s.io/v1',
    kind: 'StorageClass',
    metadata: { name: 'folders', annotations: { 'storageclass.kubernetes.io/is-default-class': 'true' } },
    provisioner: 'kubernetes.io/host-path',
  },
  {
    apiVersion: 'storage.k8s.io/v1',
    kind: 'StorageClass',
    metadata: { name: 'shared' },
    provisioner: sharedProvisioner,
  },
]

function apply(machine, object) {
  const file = join(machine.folder, 'object.json')
  writeFileSync(file, JSON.stringify(object))
  runInMachine(machine, join(machine.folder, 'tools/kubectl'), ['apply', '-f', file])
}

/** Writes what the parts read. */
function prepare(machine, programs) {
  const { folder } = machine
  const at = Object.fromEntries(['conf', 'run', 'state', 'tools', 'cni'].map((name) => [name, join(folder, name)]))
  for (const path of Object.values(at)) mkdirSync(path)
  const pki = join(folder, 'pki')
  makeCertificates(pki, { node, service: apiService, url })
  const kubeconfig = join(folder, 'kubeconfig')
  spawnSync('cp', [join(pki, 'admin.kubeconfig'), kubeconfig])
  const wrap = (name, words) => writeFileSync(join(at.tools, name), `#!/bin/sh\nexec ${words} "$@"\n`, { mode: 0o755 })
  wrap('kubectl', `${programs}/bin/kubernetes kubectl --kubeconfig ${kubeconfig}`)
  wrap('ctr', `${programs}/bin/ctr --address ${at.run}/containerd.sock --namespace k8s.io`)
  writeFileSync(join(at.conf, 'containerd.toml'), containerdConfig(folder, at))
  writeFileSync(join(at.cni, '10-bridge.conflist'), JSON.stringify(networkConfig(at)))
  writeFileSync(join(at.conf, 'resolv.conf'), '')
  writeFileSync(join(at.conf, 'kubelet.json'), JSON.stringify(kubeletConfig(machine, at, pki)))
  runInMachine(machine, 'sh', ['-c', `ip link add ${bridge} type bridge && ip addr add ${node}/24 dev ${bridge} && ip link set ${bridge} up && ip addr add ${apiService}/32 dev lo`]) // prettier-ignore
  return { ...at, pki }
}

function startControlPlane({ folder, part }, { state, pki }) {
  const kubernetes = `${folder}/engine/bin/kubernetes`
  part('etcd', `exec ${kubernetes} etcd --name node --data-dir ${state}/etcd --unsafe-no-fsync --log-level warn`)
  const apiserver = [
    `kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address ${apiService} --secure-port 443`,
    `--advertise-address ${node} --endpoint-reconciler-type none --service-cluster-ip-range 10.96.0.0/16`,
    `--tls-cert-file ${pki}/apiserver.crt --tls-private-key-file ${pki}/apiserver.key --client-ca-file ${pki}/ca.crt`,
    `--service-account-issuer https://kubernetes.default.svc --service-account-key-file ${pki}/accounts.pub`,
    `--service-account-signing-key-file ${pki}/accounts.key --kubelet-certificate-authority ${pki}/ca.crt`,
    `--kubelet-client-certificate ${pki}/apiserver-to-kubelet.crt --kubelet-client-key ${pki}/apiserver-to-kubelet.key`,
    '--kubelet-preferred-address-types InternalIP --authorization-mode Node,RBAC',
    // Workers in Pods are privileged.
    '--enable-admission-plugins NodeRestriction --allow-privileged=true --profiling=false',
  ]
  part('apiserver', `exec ${kubernetes} ${apiserver.join(' ')}`)
}

function startNode({ folder, part }, { conf, pki }) {
  const kubernetes = `${folder}/engine/bin/kubernetes`
  const alone = '--leader-elect=false --secure-port 0'
  part('scheduler', `exec ${kubernetes} kube-scheduler --kubeconfig ${pki}/scheduler.kubeconfig ${alone}`)
  const controllers = [
    `kube-controller-manager --kubeconfig ${pki}/controllers.kubeconfig ${alone} --use-service-account-credentials`,
    `--service-account-private-key-file ${pki}/accounts.key --root-ca-file ${pki}/ca.crt --enable-hostpath-provisioner`,
  ]
  part('controllers', `exec ${kubernetes} ${controllers.join(' ')}`)
  part('containerd', `PATH=${folder}/engine/bin:$PATH exec containerd --config ${conf}/containerd.toml`)
}

/** Starts the kubelet, which ends if containerd doesn't answer. */
function startKubelet({ folder, part }, { conf, state, pki }) {
  const options = [
    `--config ${conf}/kubelet.json --kubeconfig ${pki}/kubelet.kubeconfig --root-dir ${state}/kubelet`,
    `--cert-dir ${state}/kubelet/pki --hostname-override node --node-ip ${node}`,
  ]
  const command = `exec ${folder}/engine/bin/kubernetes kubelet ${options.join(' ')}`
  part('kubelet', `exec unshare --mount --propagation unchanged bash -c '${keepTunables(conf)} ${command}'`)
}

/**
 * A kubelet sets these, for the whole machine. It sees files in their place that have the values already. The files are in
 * a mount namespace of the kubelet's, so the /proc of Pods is whole. A Pod with a user namespace can't mount /proc otherwise.
 */
const tunables = {
  'vm/overcommit_memory': 1,
  'vm/panic_on_oom': 0,
  'kernel/panic': 10,
  'kernel/panic_on_oops': 1,
  'kernel/keys/root_maxkeys': 1_000_000,
  'kernel/keys/root_maxbytes': 25_000_000,
}

function keepTunables(conf) {
  const commands = Object.entries(tunables).map(([path, value]) => {
    const file = join(conf, path.replaceAll('/', '-'))
    writeFileSync(file, `${value}\n`)
    return `mount --bind ${file} /proc/sys/${path};`
  })
  return ['set -e; mount --make-rprivate /proc;', ...commands].join(' ')
}

/** The kubelet makes the cgroups of Pods below that of the machine, which must be in each hierarchy. */
function makeCgroups({ name }) {
  const base = '/sys/fs/cgroup'
  if (existsSync(join(base, 'cgroup.controllers'))) {
    mkdirSync(join(base, name))
    return
  }
  for (const hierarchy of readdirSync(base, { withFileTypes: true })) {
    if (!hierarchy.isDirectory() || hierarchy.name === 'unified') continue
    mkdirSync(join(base, hierarchy.name, name), { recursive: true })
    if (hierarchy.name === 'cpuset')
      for (const file of ['cpuset.cpus', 'cpuset.mems'])
        spawnSync('cp', ['--no-preserve=all', join(base, 'cpuset', file), join(base, 'cpuset', name, file)])
  }
}

function containerdConfig(folder, { run, state, cni, conf }) {
  const criPlugin = 'plugins."io.containerd.grpc.v1.cri"'
  const runtime = (name) => `
[${criPlugin}.containerd.runtimes.${name}]
  runtime_type = "io.containerd.runc.v2"
  [${criPlugin}.containerd.runtimes.${name}.options]
    BinaryName = "${folder}/engine/bin/runc"
    SystemdCgroup = false
`
  // Without restrict_oom_score_adj, runc fails where root may not lower its score.
  return `version = 2
root = "${state}/containerd"
state = "${run}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "${run}/containerd.sock"
[${criPlugin}]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [${criPlugin}.cni]
    bin_dir = "${folder}/engine/root/usr/lib/cni"
    conf_dir = "${cni}"
  [${criPlugin}.registry]
    config_path = "${conf}/certs.d"
  [${criPlugin}.containerd]
    snapshotter = "overlayfs"
${runtime('runc')}${runtime('other')}`
}

function networkConfig({ run }) {
  const ipam = {
    type: 'host-local',
    dataDir: `${run}/networks`,
    ranges: [[{ subnet: `${subnet}.0/24`, rangeStart: `${subnet}.10` }]],
    routes: [{ dst: '0.0.0.0/0' }],
  }
  return { cniVersion: '1.0.0', name: 'pods', plugins: [{ type: 'bridge', bridge, isGateway: true, ipam }] }
}

function kubeletConfig({ folder, name }, { conf, run }, pki) {
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    address: node,
    readOnlyPort: 0,
    healthzPort: 0,
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: true },
      x509: { clientCAFile: `${pki}/ca.crt` },
    },
    authorization: { mode: 'Webhook' },
    tlsCertFile: `${pki}/kubelet-server.crt`,
    tlsPrivateKeyFile: `${pki}/kubelet-server.key`,
    containerRuntimeEndpoint: `unix://${run}/containerd.sock`,
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${name}`,
    failSwapOn: false,
    failCgroupV1: false,
    clusterDNS: [dns],
    clusterDomain: 'cluster.local',
    resolvConf: `${conf}/resolv.conf`,
    podLogsDir: `${folder}/log/pods`,
    volumePluginDir: `${folder}/state/volume-plugins`,
    serializeImagePulls: false,
    maxPods: 240,
    imageGCHighThresholdPercent: 100,
    evictionHard: {
      'memory.available': '100Mi',
      'nodefs.available': '1%',
      'nodefs.inodesFree': '1%',
      'imagefs.available': '1%',
    },
  }
}

/** Ready is not enough: the taint of the time before is removed a moment later. */
function isSchedulable({ status, stdout }) {
  if (status !== 0) return false
  const { spec, status: seen } = JSON.parse(stdout)
  const isReady = seen.conditions.some((condition) => condition.type === 'Ready' && condition.status === 'True')
  return isReady && (spec.taints ?? []).length === 0
}
