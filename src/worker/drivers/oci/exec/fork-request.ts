import type { ProcessSpec } from './process-spec.ts'

/** The longest request that a fork server reads (`perl/guest/fork-server.pl`). */
const REQUEST_LIMIT_BYTES = 65_536

/** The numbers of resources (asm-generic/resource.h). */
const RESOURCES: ReadonlyMap<string, number> = new Map(
  ['CPU', 'FSIZE', 'DATA', 'STACK', 'CORE', 'RSS', 'NPROC', 'NOFILE', 'MEMLOCK', 'AS', 'LOCKS', 'SIGPENDING', 'MSGQUEUE', 'NICE', 'RTPRIO', 'RTTIME']
    .map((name, number) => [`RLIMIT_${name}`, number]),
) // prettier-ignore

/**
 * Encodes a process for a fork server, which runs as user 0 with these capabilities. Returns null for a process that only the
 * runtime can start: one with a terminal, with a user that the server can't become, or with fields of unusual size.
 */
export function encodeForkRequest(spec: ProcessSpec, capabilities: ReadonlySet<string>): Buffer | null {
  const { terminal, user, args, env, cwd, rlimits } = spec
  const [program = ''] = args
  const { uid, gid, additionalGids: groups } = user
  if (terminal || program === '' || [...args, ...env, cwd].some((text) => text.includes('\0'))) return null
  if (uid !== 0 && !capabilities.has('CAP_SETUID')) return null
  if ((gid !== 0 || groups.length > 0) && !capabilities.has('CAP_SETGID')) return null
  const limits: Buffer[] = []
  for (const { type, soft, hard } of rlimits) {
    const resource = RESOURCES.get(type)
    if (resource === undefined || !Number.isSafeInteger(soft) || !Number.isSafeInteger(hard)) return null
    limits.push(u32(resource), u64(soft), u64(hard))
  }
  const request = Buffer.concat([
    u32(uid),
    u32(gid),
    withLength(Buffer.concat(groups.map(u32))),
    withLength(Buffer.concat(limits)),
    withLength(Buffer.from(cwd)),
    ...[pathsOf(program, env), args, env].map((texts) =>
      withLength(Buffer.concat(texts.map((text) => withLength(Buffer.from(text))))),
    ),
  ])
  return request.length > REQUEST_LIMIT_BYTES ? null : request
}

/** The paths at which a program may be, in the order of the process's own PATH. */
function pathsOf(program: string, env: readonly string[]): readonly string[] {
  if (program.includes('/')) return [program]
  const path = env.find((variable) => variable.startsWith('PATH='))?.slice('PATH='.length) ?? ''
  return path.split(':').map((folder) => (folder === '' ? program : `${folder}/${program}`))
}

function withLength(bytes: Buffer): Buffer {
  return Buffer.concat([u32(bytes.length), bytes])
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(value))
  return bytes
}
