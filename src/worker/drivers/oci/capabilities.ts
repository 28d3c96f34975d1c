import type { SecurityProfile } from '../../../domain/spec.ts'

/**
 * What the sandbox's user 0 may do, always within its user namespace (capabilities(7)). Absent on purpose, although
 * Docker gives them: `CAP_NET_RAW` and `CAP_MKNOD`, which mean nothing in a user namespace or open raw sockets.
 */
const DEFAULT_CAPABILITIES = [
  'CAP_AUDIT_WRITE', // sudo and login stop without it
  'CAP_CHOWN', // package managers set owners
  'CAP_DAC_OVERRIDE', // user 0 edits others' files
  'CAP_FOWNER',
  'CAP_FSETID', // set-uid bits survive chown and write, as packages need
  'CAP_KILL',
  'CAP_NET_BIND_SERVICE',
  'CAP_SETFCAP', // packages that carry file capabilities
  'CAP_SETGID', // su, sudo, and daemons that leave user 0
  'CAP_SETPCAP', // sudo lowers its own bounding set
  'CAP_SETUID',
  'CAP_SYS_CHROOT', // sshd and package builds; the root was pivoted, so a chroot leads nowhere
] as const

/** `restricted`: user 0 keeps power over its own files and processes, and can become nobody else. */
const RESTRICTED_CAPABILITIES = [
  'CAP_CHOWN',
  'CAP_DAC_OVERRIDE',
  'CAP_FOWNER',
  'CAP_KILL',
  'CAP_NET_BIND_SERVICE',
] as const

/** The bounding set of a sandbox. */
export function boundingCapabilities(profile: SecurityProfile): readonly string[] {
  return profile === 'restricted' ? RESTRICTED_CAPABILITIES : DEFAULT_CAPABILITIES
}

/** A process's capabilities in OCI form: user 0 holds the bounding set, every other user none of it. */
export function processCapabilities(
  profile: SecurityProfile,
  uid: number,
): Readonly<Record<string, readonly string[]>> {
  const bounding = boundingCapabilities(profile)
  const held = uid === 0 ? bounding : []
  return { bounding, effective: held, permitted: held, inheritable: [], ambient: [] }
}
