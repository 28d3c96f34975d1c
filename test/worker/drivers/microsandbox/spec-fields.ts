import type {
  BindMount, LifecyclePolicy, MountOptions, NamedMount, NetworkSpec, Patch, Resources, RuntimeOptions, SandboxSpec, TmpfsMount,
} from '../../../../src/domain/spec/spec.ts' // prettier-ignore

/**
 * A test case for a field of the spec. It has a value other than the default, and the expected value at a path of the
 * genuine SDK's configuration. For a field that the SDK doesn't get, `by` names the part of our code that handles the
 * field.
 */
export type FieldCase<T> = { readonly value: T; readonly at: string; readonly is: unknown } | { readonly by: string }
export type TableOf<T> = { readonly [K in keyof T]-?: FieldCase<T[K]> }

export const RUNTIME: TableOf<RuntimeOptions> = {
  cmd: { value: ['serve', '--all'], at: 'runtime.cmd', is: ['serve', '--all'] },
  entrypoint: { value: ['/entry'], at: 'runtime.entrypoint', is: ['/entry'] },
  hostname: { value: 'box', at: 'runtime.hostname', is: 'box' },
  log_level: { value: 'debug', at: 'runtime.logLevel', is: 'debug' },
  metrics_sample_interval_ms: { value: 2500, at: 'runtime.metricsSampleIntervalMs', is: 2500 },
  disable_metrics_sample: { value: true, at: 'runtime.disableMetricsSample', is: true },
  scripts: { value: { go: 'echo ${HOME}' }, at: 'runtime.scripts', is: { go: '#!/bin/sh\necho ${HOME}' } },
  shell: { value: '/bin/bash', at: 'runtime.shell', is: '/bin/bash' },
  user: { value: '1000:1000', at: 'runtime.user', is: '1000:1000' },
  workdir: { value: '/srv', at: 'runtime.workdir', is: '/srv' },
}

export const RESOURCES: TableOf<Resources> = {
  memory_mib: { value: 768, at: 'resources.memoryMib', is: 768 },
  vcpus: { value: 3, at: 'resources.cpus', is: 3 },
  disk_size_mib: { by: '`VmConfigInput.diskSizeMib`, which start.ts computes' },
}

const ROUTER = 'the router and the egress process of the worker (decision 55)'

export const NETWORK: TableOf<NetworkSpec> = {
  enabled: { by: 'the test of a sandbox with and without a network' },
  strict: { by: ROUTER },
  dns: { by: ROUTER },
  interface: {
    value: { ipv4_address: '172.16.9.2', ipv4_pool: null, mac: [2, 0, 0, 0, 0, 5], mtu: 1400 },
    at: 'network.interface',
    is: { ipv4Address: '172.16.9.2', mac: [2, 0, 0, 0, 0, 5], mtu: 1400 },
  },
  ports: {
    value: [{ host_bind: '127.0.0.1', host_port: 8080, guest_port: 80, protocol: 'tcp' }],
    at: 'network.ports',
    is: [{ hostBind: '0.0.0.0', hostPort: 80, guestPort: 80, protocol: 'tcp' }],
  },
  max_udp_connections: { by: ROUTER },
  max_connections: { by: ROUTER },
  policy: { by: ROUTER },
  trust_host_cas: { by: '`givenCertificates`, by which start.ts chooses what the guest trusts' },
  secrets: { by: ROUTER },
  tls: { by: ROUTER },
  secret_defaults: { by: 'the control plane, which applies them before it gives the secrets to a worker' },
}

export const LIFECYCLE: TableOf<LifecyclePolicy> = {
  ephemeral: { by: 'the control plane, which deletes the sandbox' },
  idle_timeout_secs: { by: 'guest-heartbeats.ts, which reads when the guest was last used' },
  max_duration_secs: { by: 'the control plane, which stops the run' },
}

export const SPEC: TableOf<SandboxSpec> = {
  image: {
    by: '`VmConfigInput.image`: the image store resolves the reference, and the runtime gets the image by its digest',
  },
  pull_policy: { by: 'the image store; the runtime itself never pulls' },
  resources: { by: 'RESOURCES' },
  runtime: { by: 'RUNTIME' },
  env: { value: [{ key: 'A', value: '${HOME} $$' }], at: 'env', is: [{ key: 'A', value: '${HOME} $$' }] },
  labels: { value: { team: 'a' }, at: 'labels', is: { team: 'a' } },
  rlimits: {
    value: [{ resource: 'nofile', soft: 5, hard: 9 }],
    at: 'rlimits',
    is: [{ resource: 'Nofile', soft: 5, hard: 9 }],
  },
  mounts: { by: 'the tables of mounts' },
  patches: { by: 'PATCHES' },
  network: { by: 'NETWORK' },
  init: {
    value: { cmd: '/sbin/init', args: ['--x'], env: [['K', 'V']] },
    at: 'init',
    is: { cmd: '/sbin/init', args: ['--x'], env: [['K', 'V']] },
  },
  security_profile: { value: 'restricted', at: 'securityProfile', is: 'restricted' },
  snapshot_id: { by: 'the control plane, which restores snapshots only on the worker that made them' },
  lifecycle: { by: 'LIFECYCLE' },
}

export const OPTIONS: { readonly [K in keyof MountOptions]-?: string } = {
  readonly: 'readonly', noexec: 'noexec', nosuid: 'nosuid', nodev: 'nodev',
} // prettier-ignore

export type Folder = Omit<BindMount, 'type' | 'guest' | 'options' | 'host'>
export const FOLDER: TableOf<Folder> = {
  stat_virtualization: { value: 'relaxed', at: 'mounts.0.statVirtualization', is: 'relaxed' },
  host_permissions: { value: 'mirror', at: 'mounts.0.hostPermissions', is: 'mirror' },
  quota_mib: { value: 12, at: 'mounts.0.quotaMib', is: 12 },
}
export type NamedFolder = Omit<NamedMount, 'type' | 'guest' | 'options' | 'name'>
export const NAMED: TableOf<NamedFolder> = {
  stat_virtualization: FOLDER.stat_virtualization,
  host_permissions: FOLDER.host_permissions,
}
export type InMemory = Omit<TmpfsMount, 'type' | 'guest' | 'options'>
export const TMPFS: TableOf<InMemory> = {
  size_mib: { value: 9, at: 'mounts.0.sizeMib', is: 9 },
}

export const PATCHES: {
  readonly [K in Patch['type']]: { readonly patch: Extract<Patch, { type: K }>; readonly is: object }
} = {
  text: {
    patch: { type: 'text', path: '/a', content: 'x', mode: 0o640, replace: true },
    is: { Text: { path: '/a', content: 'x', mode: 0o640, replace: true } },
  },
  file: {
    patch: { type: 'file', path: '/a', content: 'AAH/', mode: null, replace: false },
    is: { File: { path: '/a', content: [0, 1, 255], mode: null, replace: false } },
  },
  copy_file: {
    patch: { type: 'copy_file', src: '/from', dst: '/to', mode: 0o600, replace: true },
    is: { CopyFile: { src: '/copies/0', dst: '/to', mode: 0o600, replace: true } },
  },
  copy_dir: {
    patch: { type: 'copy_dir', src: '/from', dst: '/to', replace: true },
    is: { CopyDir: { src: '/copies/0', dst: '/to', replace: true } },
  },
  symlink: {
    patch: { type: 'symlink', target: '/t', link: '/l', replace: true },
    is: { Symlink: { target: '/t', link: '/l', replace: true } },
  },
  mkdir: { patch: { type: 'mkdir', path: '/d', mode: 0o700 }, is: { Mkdir: { path: '/d', mode: 0o700 } } },
  remove: { patch: { type: 'remove', path: '/r' }, is: { Remove: { path: '/r' } } },
  append: { patch: { type: 'append', path: '/a', content: 'y' }, is: { Append: { path: '/a', content: 'y' } } },
}
