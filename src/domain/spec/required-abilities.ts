import { ABILITIES, type Ability, type FieldAbility } from '../abilities.ts'
import { SNAPSHOT_LABEL } from '../sandboxes/snapshot-schedule.ts'
import { DISK_LABEL, DISK_OF_RUN } from '../sandboxes/disk-label.ts'
import { ISOLATION_LABEL, isIsolationLevel, isolationAbility } from '../isolation.ts'
import type { Mount, Rule, SandboxSpec } from './spec.ts'

/** A feature that a specification requests and that a driver may lack. */
export type RequiredAbility = {
  readonly ability: Ability
  /** The field that requests the feature, such as `mounts[0]`. */
  readonly field: string
  /** The requirement on a worker, for people. */
  readonly why: string
}

type AbilityRule = {
  /** The request fields that need the ability, for people. */
  readonly fields: string
  readonly why: string
  /** Finds the fields of a specification that need the ability. */
  readonly findFields: (spec: SandboxSpec) => readonly string[]
}

const ABILITY_RULES: Record<FieldAbility, AbilityRule> = {
  patches: {
    fields: '`patches`',
    why: 'needs a worker that is capable of patching the root file system before the start',
    findFields: (spec) => indexedFields('patches', spec.patches),
  },
  rlimits: {
    fields: '`rlimits`',
    why: 'needs a worker that is capable of setting resource limits for every process',
    findFields: (spec) => indexedFields('rlimits', spec.rlimits),
  },
  tmpfs: {
    fields: '`mounts` of type `tmpfs`',
    why: 'needs a worker that is capable of mounting a file system in memory',
    findFields: (spec) => indexedFields('mounts', spec.mounts, ({ type }) => type === 'tmpfs'),
  },
  hostname: {
    fields: '`runtime.hostname`',
    why: 'needs a worker that is capable of setting the host name',
    findFields: (spec) => fieldIf('runtime.hostname', spec.runtime.hostname !== null),
  },
  scripts: {
    fields: '`runtime.scripts`',
    why: 'needs a worker that is capable of putting scripts on the PATH',
    findFields: (spec) => fieldIf('runtime.scripts', Object.keys(spec.runtime.scripts).length > 0),
  },
  disk_size: {
    fields: '`resources.disk_size_mib`',
    why: 'needs a worker that is capable of limiting the size of the writable disk',
    findFields: (spec) => fieldIf('resources.disk_size_mib', spec.resources.disk_size_mib !== null),
  },
  security_restricted: {
    fields: '`security_profile: restricted`',
    why: 'needs a worker that is capable of the restricted security profile',
    findFields: (spec) => fieldIf('security_profile', spec.security_profile === 'restricted'),
  },
  network_off: {
    fields: '`network.enabled: false`',
    why: 'needs a worker that is capable of running without a network',
    findFields: (spec) => fieldIf('network.enabled', !spec.network.enabled),
  },
  network_policy: {
    fields: '`network.policy` of groups, CIDR blocks, protocols and ports',
    why: 'needs a worker that is capable of enforcing a network policy',
    findFields: (spec) => fieldIf('network.policy', spec.network.enabled && spec.network.policy !== null),
  },
  network_max_connections: {
    fields: '`network.max_connections`',
    why: 'needs a worker that is capable of limiting concurrent connections',
    findFields: (spec) =>
      fieldIf('network.max_connections', spec.network.enabled && spec.network.max_connections !== null),
  },
  network_max_udp_connections: {
    fields: '`network.max_udp_connections`',
    why: 'needs a worker that is capable of limiting concurrent UDP connections',
    findFields: ({ network }) =>
      fieldIf('network.max_udp_connections', network.enabled && network.max_udp_connections !== undefined),
  },
  network_dns: {
    fields: '`network.dns`',
    why: 'needs a worker that is capable of resolving names as a sandbox asks for',
    findFields: ({ network }) => fieldIf('network.dns', network.enabled && network.dns !== undefined),
  },
  network_interface: {
    fields: '`network.interface`',
    why: 'needs a worker that is capable of configuring the network device',
    findFields: ({ network }) => fieldIf('network.interface', network.enabled && network.interface !== undefined),
  },
  network_domains: {
    fields: '`network.policy.rules[].destination` with `domain` or `domain_suffix`',
    why: 'needs a worker that is capable of filtering traffic by domain name',
    findFields: (spec) => {
      const rules = spec.network.enabled ? (spec.network.policy?.rules ?? []) : []
      return indexedFields('network.policy.rules', rules, namesDomain).map((at) => `${at}.destination`)
    },
  },
  secrets: {
    fields: '`network.secrets.entries`',
    why: 'needs a worker that is capable of substituting secrets in outgoing requests',
    findFields: (spec) => indexedFields('network.secrets.entries', spec.network.secrets),
  },
  tls_interception: {
    fields: '`network.tls`',
    why: 'needs a worker that is capable of intercepting TLS connections',
    findFields: ({ network }) => fieldIf('network.tls', network.enabled && network.tls !== undefined),
  },
  trust_host_cas: {
    fields: '`network.trust_host_cas`',
    why: 'needs a worker that is capable of handing its certificate authorities into sandboxes',
    findFields: ({ network }) => fieldIf('network.trust_host_cas', network.trust_host_cas === true),
  },
  published_ports: {
    fields: '`network.ports`',
    why: 'needs a worker that is capable of publishing ports of sandboxes on its machine',
    findFields: ({ network }) => indexedFields('network.ports', network.ports ?? []),
  },
  named_mounts: {
    fields: '`mounts` of type `named`',
    why: 'needs a worker that is capable of mounting a volume',
    findFields: (spec) => indexedFields('mounts', spec.mounts, ({ type }) => type === 'named'),
  },
  bind_mounts: {
    fields: '`mounts` of type `bind`, `patches` of type `copy_file` and `copy_dir`',
    why: "needs a worker that is capable of using the organization's default volume",
    findFields: (spec) => [
      ...indexedFields('mounts', spec.mounts, ({ type }) => type === 'bind'),
      ...indexedFields('patches', spec.patches, ({ type }) => type === 'copy_file' || type === 'copy_dir'),
    ],
  },
  bind_quota: {
    fields: '`mounts[].quota_mib` of type `bind`',
    why: 'needs a worker that is capable of limiting the size of a folder within a volume',
    findFields: (spec) => {
      const asks = (mount: Mount): boolean => mount.type === 'bind' && mount.quota_mib !== null
      return indexedFields('mounts', spec.mounts, asks).map((at) => `${at}.quota_mib`)
    },
  },
  raw_stat: {
    fields: '`mounts[].stat_virtualization: off`',
    why: 'needs a worker that is capable of showing files with the owners that the volume has',
    findFields: (spec) => {
      const asks = (mount: Mount): boolean => 'stat_virtualization' in mount && mount.stat_virtualization === 'off'
      return indexedFields('mounts', spec.mounts, asks).map((at) => `${at}.stat_virtualization`)
    },
  },
  disk_images: {
    fields: '`mounts` of type `disk_image`',
    why: 'needs a worker that is capable of mounting a disk image',
    findFields: (spec) => indexedFields('mounts', spec.mounts, ({ type }) => type === 'disk_image'),
  },
  disk_image_formats: {
    fields: '`mounts[].format: qcow2` and `vmdk` of type `disk_image`',
    why: 'needs a worker that is capable of mounting a disk image in the format qcow2 or vmdk',
    findFields: (spec) => {
      const asks = (mount: Mount): boolean => mount.type === 'disk_image' && mount.format !== 'raw'
      return indexedFields('mounts', spec.mounts, asks).map((at) => `${at}.format`)
    },
  },
  init_handoff: {
    fields: '`init`',
    why: 'needs a worker that is capable of running an init program as process 1',
    findFields: (spec) => fieldIf('init', spec.init !== null),
  },
  metrics: {
    fields: '`runtime.metrics_sample_interval_ms` other than 1000 or null',
    why: 'needs a worker that is capable of sampling metrics at a chosen interval',
    findFields: ({ runtime }) => {
      const { metrics_sample_interval_ms: interval, disable_metrics_sample: isOff } = runtime
      return fieldIf('runtime.metrics_sample_interval_ms', !isOff && interval !== null && interval !== 1000)
    },
  },
  snapshots: {
    fields: `\`labels["${SNAPSHOT_LABEL}"]\``,
    why: 'needs a worker that is capable of snapshots of disks',
    findFields: ({ labels }) => fieldIf(`labels.${SNAPSHOT_LABEL}`, labels[SNAPSHOT_LABEL] !== undefined),
  },
  kept_disk: {
    fields: `\`lifecycle.ephemeral: false\` without the label \`${DISK_LABEL}: ${DISK_OF_RUN}\``,
    why: 'needs a worker that is capable of keeping the files of a stopped sandbox',
    findFields: ({ labels, lifecycle }) =>
      fieldIf('lifecycle.ephemeral', !lifecycle.ephemeral && labels[DISK_LABEL] !== DISK_OF_RUN),
  },
}

/**
 * All features of a specification that some drivers can't enforce, in the order of `ABILITIES`, but for `requiredDisk`.
 * The isolation that its label demands comes last.
 */
export function requiredAbilities(spec: SandboxSpec): readonly RequiredAbility[] {
  const required: RequiredAbility[] = []
  for (const ability of ABILITIES) {
    if (ability === 'kept_disk') continue
    const { why, findFields } = ABILITY_RULES[ability]
    for (const field of findFields(spec)) required.push({ ability, field, why })
  }
  const level = spec.labels[ISOLATION_LABEL] ?? ''
  if (isIsolationLevel(level)) {
    const why = `needs a worker that is capable of the isolation ${level}`
    required.push({ ability: isolationAbility(level), field: `labels.${ISOLATION_LABEL}`, why })
  }
  return required
}

/** What the first secrets need of a sandbox that exists. */
export const SECRETS_NEED: RequiredAbility = {
  ability: 'secrets',
  field: 'network.secrets.entries',
  why: ABILITY_RULES.secrets.why,
}

/**
 * What a specification needs whose files must outlive its runs, which most need and most workers have. It counts only where some worker
 * keeps no disks.
 */
export function requiredDisk(spec: SandboxSpec): readonly RequiredAbility[] {
  const { why, findFields } = ABILITY_RULES.kept_disk
  return findFields(spec).map((field) => ({ ability: 'kept_disk', field, why }))
}

/** A row of the table in docs/drivers.md. */
export type AbilityRow = { readonly ability: Ability; readonly fields: string; readonly meaning: string }

/** The documented table of abilities: what a driver with the ability enforces. */
export const ABILITIES_TABLE: readonly AbilityRow[] = ABILITIES.map((ability) => ({
  ability,
  fields: ABILITY_RULES[ability].fields,
  meaning: ABILITY_RULES[ability].why,
}))

/** The request fields that need an ability that is not in `offered`, for people. */
export function fieldsNeedingOtherAbilities(offered: readonly Ability[]): readonly string[] {
  return ABILITIES.filter((ability) => !offered.includes(ability)).map((ability) => ABILITY_RULES[ability].fields)
}

const NONE: readonly string[] = []

function fieldIf(field: string, isAsked: boolean): readonly string[] {
  return isAsked ? [field] : NONE
}

function indexedFields<Item>(
  list: string,
  items: readonly Item[],
  asks: (item: Item) => boolean = () => true,
): readonly string[] {
  if (items.length === 0) return NONE
  return items.flatMap((item, index) => (asks(item) ? [`${list}[${String(index)}]`] : []))
}

function namesDomain({ destination }: Rule): boolean {
  return typeof destination === 'object' && ('domain' in destination || 'domain_suffix' in destination)
}
