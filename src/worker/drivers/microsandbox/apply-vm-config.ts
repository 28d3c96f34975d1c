import type {
  InterfaceOverridesBuilder,
  MountBuilder,
  NetworkBuilder,
  PatchBuilder,
  SandboxBuilder,
} from 'microsandbox'
import type { NetworkInterface } from '../../../domain/spec/network-interface.ts'
import type { VmMount, VmPatch, VmConfig } from './vm-config.ts'

type Mounting = InstanceType<typeof MountBuilder>
type Patching = InstanceType<typeof PatchBuilder>
type Networking = InstanceType<typeof NetworkBuilder>
type Interfacing = InstanceType<typeof InterfaceOverridesBuilder>

/** Applies a config to the SDK's builder. It uses every field of the config and sets nothing else. */
export function applyVmConfig(builder: SandboxBuilder, config: VmConfig): SandboxBuilder {
  builder
    .detached(true) // the microVM outlives the process that starts it
    .ephemeral(false) // only the driver deletes the sandbox
    .deploymentProfile('single-tenant') // the other profile silently restricts network policies; here, the config's own rules do that
    .pullPolicy('never')
    .image(config.image)
    .rootDisk(config.disk_size_mib)
    .cpus(config.vcpus)
    .memory(config.memory_mib)
    .hostname(config.hostname)
    .security(config.security_profile)
    .labels({ ...config.labels })
    .scripts({ ...config.scripts })
  for (const { key, value } of config.env) builder.env(key, value)
  for (const { resource, soft, hard } of config.rlimits) builder.rlimitRange(resource, soft, hard)
  if (config.workdir !== null) builder.workdir(config.workdir)
  if (config.user !== null) builder.user(config.user)
  if (config.shell !== null) builder.shell(config.shell)
  if (config.entrypoint !== null) builder.entrypoint([...config.entrypoint])
  if (config.cmd !== null) builder.cmd([...config.cmd])
  if (config.log_level !== null) builder.logLevel(config.log_level)
  if (config.metrics_sample_interval_ms === 0) builder.disableMetricsSample()
  else if (config.metrics_sample_interval_ms !== null)
    builder.metricsSampleIntervalMs(config.metrics_sample_interval_ms)
  for (const mount of config.mounts) builder.volume(mount.guest, (one) => buildMount(one, mount))
  if (config.patches.length > 0) builder.patch((all) => config.patches.reduce(buildPatch, all))
  const { network, init } = config
  if (network === null) builder.disableNetwork()
  else builder.network((one) => buildNetwork(one, network))
  if (init !== null) builder.initWith(init.cmd, (one) => one.args([...init.args]).envs({ ...init.env }))
  return builder
}

function buildMount(builder: Mounting, mount: VmMount): Mounting {
  if (mount.type === 'tmpfs') {
    builder.tmpfs()
    if (mount.size_mib !== null) builder.size(mount.size_mib)
  } else if (mount.type === 'disk') {
    builder.disk(mount.source).format('raw')
    if (mount.fstype !== null) builder.fstype(mount.fstype)
  } else {
    builder
      .bind(mount.source)
      .statVirtualization(mount.stat_virtualization)
      .hostPermissions(mount.host_permissions)
      .quota(mount.quota_mib)
    // The owner of files that the API wrote to the volume. The runtime refuses it together with off, which shows the real owner.
    if (mount.stat_virtualization !== 'off') builder.owner(0, 0)
  }
  if (mount.readonly) builder.readonly()
  if (mount.noexec) builder.noexec()
  if (mount.nosuid) builder.nosuid()
  if (mount.nodev) builder.nodev()
  return builder
}

function buildPatch(builder: Patching, patch: VmPatch): Patching {
  switch (patch.type) {
    case 'text':
      return builder.text(patch.path, patch.content, withMode(patch))
    case 'file':
      return builder.file(patch.path, Buffer.from(patch.content, 'base64'), withMode(patch))
    case 'copy_file':
      return builder.copyFile(patch.source, patch.dst, withMode(patch))
    case 'copy_dir':
      return builder.copyDir(patch.source, patch.dst, { replace: patch.replace })
    case 'symlink':
      return builder.symlink(patch.target, patch.link, { replace: patch.replace })
    case 'mkdir':
      return builder.mkdir(patch.path, patch.mode === null ? {} : { mode: patch.mode })
    case 'remove':
      return builder.remove(patch.path)
    case 'append':
      return builder.append(patch.path, patch.content)
  }
}

function withMode({ mode, replace }: { readonly mode: number | null; readonly replace: boolean }): {
  mode?: number
  replace: boolean
} {
  return mode === null ? { replace } : { mode, replace }
}

function buildNetwork(builder: Networking, network: NonNullable<VmConfig['network']>): Networking {
  builder
    .enabled(true)
    .trustHostCAs(true) // what it takes for the machine's are those that each start gives: see vm-surroundings.ts
    .policyJson(JSON.stringify(network.policy))
    .maxConnections(network.max_connections)
    // the worker's forwarder protects from rebinding and limits the time of queries, as the spec asks for
    .dns((one) => one.rebindProtection(false).queryTimeoutMs(DNS_TIMEOUT_MS))
  for (const { guest_port, protocol } of network.ports) {
    if (protocol === 'tcp') builder.portBind(ANY_ADDRESS, guest_port, guest_port)
    else builder.portUdpBind(ANY_ADDRESS, guest_port, guest_port)
  }
  const { interface: device } = network
  if (device !== null) builder.interface((one) => buildInterface(one, device))
  return builder
}

/** Longer than the worker's forwarder ever takes. */
const DNS_TIMEOUT_MS = 60_000
/** All addresses of the run's network namespace. */
const ANY_ADDRESS = '0.0.0.0'

function buildInterface(builder: Interfacing, { ipv4_address, mac, mtu }: NetworkInterface): Interfacing {
  if (ipv4_address !== null) builder.ipv4(ipv4_address)
  if (mac !== null) builder.mac(mac.map((octet) => octet.toString(16).padStart(2, '0')).join(':'))
  if (mtu !== null) builder.mtu(mtu)
  return builder
}
