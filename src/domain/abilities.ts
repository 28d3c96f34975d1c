import type { IsolationAbility } from './isolation.ts'

/**
 * The abilities that a driver may have beyond the basics. A specification that needs an ability that no worker has is
 * refused.
 */
export const ABILITIES = [
  'patches',
  'rlimits',
  'tmpfs',
  'hostname',
  'scripts',
  'disk_size',
  'security_restricted',
  'network_off',
  'network_policy',
  'network_max_connections',
  'network_max_udp_connections',
  'network_dns',
  'network_interface',
  'network_domains',
  'secrets',
  'tls_interception',
  'trust_host_cas',
  'published_ports',
  'named_mounts',
  'bind_mounts',
  'bind_quota',
  'raw_stat',
  'disk_images',
  'disk_image_formats',
  'init_handoff',
  'metrics',
  'snapshots',
  'kept_disk',
] as const
export type FieldAbility = (typeof ABILITIES)[number]

/** An ability of a driver: to enforce a field of a specification, or to isolate sandboxes in a certain way. */
export type Ability = FieldAbility | IsolationAbility
