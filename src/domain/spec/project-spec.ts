import { formatNameserver, type DnsSettings } from './dns-settings.ts'
import type { NetworkInterface } from './network-interface.ts'
import { pascalCase, type PascalCase } from '../casing.ts'
import type {
  BindMount, DiskImageFormat, DiskImageMount, EnvVar, LifecyclePolicy, Mount, NamedMount, NetworkPolicy, NetworkSpec, Resources,
  RlimitResource, RuntimeOptions, SandboxSpec, TmpfsMount,
} from './spec.ts' // prettier-ignore
import type { PublishedPort } from './published-ports.ts'
import type { TlsInterception } from './tls-interception.ts'
import type { HostPattern, Secret, SecretDefaults, ViolationAction } from './secrets.ts'

/** The part of a specification that replies show. It lacks the sources of mounts, all patches, and secret values. */
export type SpecProjection = {
  readonly image: string
  readonly resources: Resources
  readonly runtime: RuntimeOptions
  readonly env: readonly EnvVar[]
  readonly labels: Readonly<Record<string, string>>
  readonly rlimits: readonly {
    readonly resource: PascalCase<RlimitResource>
    readonly soft: number
    readonly hard: number
  }[]
  readonly lifecycle: LifecyclePolicy
  readonly mounts: readonly MountProjection[]
  readonly network: NetworkProjection
}

export type MountProjection =
  | (Omit<BindMount, 'type' | 'host'> & { readonly type: 'Bind' })
  | (Omit<NamedMount, 'type' | 'name'> & { readonly type: 'Named' })
  | (Omit<TmpfsMount, 'type'> & { readonly type: 'Tmpfs' })
  | (Omit<DiskImageMount, 'type' | 'host' | 'format'> & {
      readonly type: 'DiskImage'
      readonly format: PascalCase<DiskImageFormat>
    })

export type NetworkProjection = {
  readonly enabled: boolean
  readonly ports: readonly PublishedPort[]
  readonly trust_host_cas: boolean
  readonly interface?: NetworkInterface
  readonly dns?: Omit<DnsSettings, 'nameservers'> & { readonly nameservers: readonly string[] }
  readonly max_connections: number | null
  readonly max_udp_connections?: number
  readonly policy: NetworkPolicy | null
  readonly secrets?: readonly SecretProjection[]
  readonly secret_defaults?: SecretDefaults
  readonly tls?: TlsProjection
}

/** A secret without its value, in the spelling of the published API. */
export type SecretProjection = {
  readonly env_var: string
  readonly placeholder: string
  readonly allowed_hosts: readonly HostPattern[]
  readonly injection: {
    readonly headers: boolean
    readonly basic_auth: boolean
    readonly header_fields?: readonly string[]
    readonly query_params: boolean
    readonly body: boolean
  }
  readonly passthrough_hosts: readonly HostPattern[]
  readonly on_violation?: ViolationAction
  readonly require_tls_identity: boolean
}

/** Interception in the spelling of the published API. Certificates are PEM texts, and a key is never shown. */
export type TlsProjection = Pick<
  TlsInterception,
  'intercepted_ports' | 'bypass' | 'block_quic_on_intercept' | 'verify_upstream' | 'scoped_verify_upstream' | 'cache'
> & {
  readonly enabled: true
  readonly upstream_ca_cert: readonly string[]
  readonly scoped_upstream_ca_cert: readonly { readonly pattern: string; readonly path: string }[]
  readonly intercept_ca: { readonly cert_path: string | null; readonly key_path: null }
}

/** Makes the part of a specification that replies show. */
export function projectSpec(spec: SandboxSpec): SpecProjection {
  return {
    image: spec.image,
    resources: spec.resources,
    runtime: spec.runtime,
    env: spec.env,
    labels: spec.labels,
    rlimits: spec.rlimits.map(({ resource, soft, hard }) => ({ resource: pascalCase(resource), soft, hard })),
    lifecycle: spec.lifecycle,
    mounts: spec.mounts.map(projectMount),
    network: projectNetwork(spec.network),
  }
}

/** Makes the part of a network's specification that replies show. */
export function projectNetwork(network: NetworkSpec): NetworkProjection {
  const {
    enabled,
    max_connections,
    max_udp_connections,
    policy,
    secrets,
    secret_defaults,
    trust_host_cas = false,
    tls,
    interface: device,
    dns,
    ports = [],
  } = network
  return {
    enabled,
    ports,
    trust_host_cas,
    max_connections,
    ...(max_udp_connections === undefined ? {} : { max_udp_connections }),
    policy,
    ...(device === undefined ? {} : { interface: device }),
    ...(dns === undefined ? {} : { dns: { ...dns, nameservers: dns.nameservers.map(formatNameserver) } }),
    ...(secrets.length === 0 ? {} : { secrets: secrets.map(projectSecret) }),
    ...(secret_defaults === undefined ? {} : { secret_defaults }),
    ...(tls === undefined ? {} : { tls: projectTls(tls) }),
  }
}

function projectTls(tls: TlsInterception): TlsProjection {
  const { upstream_ca_certs, scoped_upstream_ca_certs, intercept_ca_cert, ...same } = tls
  return {
    enabled: true,
    ...same,
    upstream_ca_cert: upstream_ca_certs,
    scoped_upstream_ca_cert: scoped_upstream_ca_certs.map(({ pattern, certificate: path }) => ({ pattern, path })),
    intercept_ca: { cert_path: intercept_ca_cert, key_path: null },
  }
}

function projectSecret(secret: Secret): SecretProjection {
  const { substitution, violation_action, ...rest } = secret
  const { headers, basic_auth, header_fields, query, body } = substitution
  return {
    env_var: rest.env_var,
    placeholder: rest.placeholder,
    allowed_hosts: rest.allowed_hosts,
    injection: { headers, basic_auth, ...(header_fields === null ? {} : { header_fields }), query_params: query, body },
    passthrough_hosts: rest.passthrough_hosts,
    ...(violation_action === null ? {} : { on_violation: violation_action }),
    require_tls_identity: rest.require_tls_identity,
  }
}

function projectMount(mount: Mount): MountProjection {
  const { guest, options } = mount
  switch (mount.type) {
    case 'bind': {
      const { stat_virtualization, host_permissions, quota_mib } = mount
      return { type: 'Bind', guest, options, stat_virtualization, host_permissions, quota_mib }
    }
    case 'named': {
      const { stat_virtualization, host_permissions } = mount
      return { type: 'Named', guest, options, stat_virtualization, host_permissions }
    }
    case 'tmpfs':
      return { type: 'Tmpfs', guest, options, size_mib: mount.size_mib }
    case 'disk_image':
      return { type: 'DiskImage', guest, format: pascalCase(mount.format), options, fstype: mount.fstype }
  }
}
