import type { SecurityProfile } from '../../../../../domain/spec/spec.ts'

/**
 * The capabilities of the sandbox's user 0, always within its user namespace (capabilities(7)). Docker also grants
 * `CAP_NET_RAW` and `CAP_MKNOD`. They are omitted here: `CAP_NET_RAW` allows raw sockets, and `CAP_MKNOD` has no effect
 * in a user namespace.
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

/**
 * The capabilities for the profile `restricted`. User 0 controls its own files and processes, and can't become another user.
 */
const RESTRICTED_CAPABILITIES = [
  'CAP_CHOWN',
  'CAP_DAC_OVERRIDE',
  'CAP_FOWNER',
  'CAP_KILL',
  'CAP_NET_BIND_SERVICE',
] as const

/**
 * Returns the capabilities of a sandbox's processes in OCI form. None of them is inheritable or ambient. The kernel therefore
 * drops them all when a program starts as a user other than 0 (capabilities(7)).
 */
export function processCapabilities(profile: SecurityProfile): Readonly<Record<string, readonly string[]>> {
  const held = profile === 'restricted' ? RESTRICTED_CAPABILITIES : DEFAULT_CAPABILITIES
  return { bounding: held, effective: held, permitted: held, inheritable: [], ambient: [] }
}
