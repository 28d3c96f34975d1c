import type { Rlimit, RlimitResource } from '../../../../domain/spec/spec.ts'

/** The hard limits of a process. An unlimited resource is absent. */
export type HardLimits = Readonly<Partial<Record<RlimitResource, number>>>

/** The limits to set, and a description of each limit that was lowered. */
type ClampedRlimits = { readonly rlimits: readonly Rlimit[]; readonly clamped: readonly string[] }

/**
 * The value for no limit. JSON can't represent 2^64 - 1 exactly: it would be rounded up to a number that runtimes can't read.
 */
const UNLIMITED = Number.MAX_SAFE_INTEGER

/**
 * Lowers limits to this machine's hard limits, because a runtime fails if a requested limit is above the hard limit of
 * its own process.
 */
export function clampRlimits(requested: readonly Rlimit[], allowed: HardLimits): ClampedRlimits {
  const clamped: string[] = []
  const rlimits = requested.map((rlimit) => {
    const most = allowed[rlimit.resource] ?? UNLIMITED
    if (rlimit.hard > most && most < UNLIMITED)
      clamped.push(`${rlimit.resource} ${String(rlimit.hard)} to ${String(most)}`)
    const hard = Math.min(rlimit.hard, most)
    return { resource: rlimit.resource, hard, soft: Math.min(rlimit.soft, hard) }
  })
  return { rlimits, clamped }
}

/**
 * The most that all users of a sandbox may have together: pending signals, and bytes in POSIX message queues. A spec may ask for
 * this much; both are kernel memory, and few programs need any of it.
 */
export const SANDBOX_CEILINGS = { sigpending: 16_384, msgqueue: 8 * 1024 * 1024 } as const

/** The limits of each user of a sandbox for which the spec asks nothing. The second is Linux's own default (mq_overview(7)). */
const DEFAULT_RLIMITS: readonly Rlimit[] = [
  { resource: 'sigpending', soft: 4096, hard: 4096 },
  { resource: 'msgqueue', soft: 819_200, hard: 819_200 },
]

/** Adds the defaults to the limits that a spec asks for, lowered to this machine's hard limits. */
export function withDefaultRlimits(requested: readonly Rlimit[], allowed: HardLimits): readonly Rlimit[] {
  const asked = new Set(requested.map(({ resource }) => resource))
  const missing = DEFAULT_RLIMITS.filter(({ resource }) => !asked.has(resource))
  return [...requested, ...clampRlimits(missing, allowed).rlimits]
}

/** Returns the hard limits for processes of sandboxes: those of the worker, and at most `SANDBOX_CEILINGS`. */
export function sandboxHardLimits(worker: HardLimits): HardLimits {
  const least = (resource: keyof typeof SANDBOX_CEILINGS): number =>
    Math.min(worker[resource] ?? UNLIMITED, SANDBOX_CEILINGS[resource])
  return { ...worker, sigpending: least('sigpending'), msgqueue: least('msgqueue') }
}

/** Parses the text of `/proc/<pid>/limits` (proc(5)). */
export function parseHardLimits(text: string): HardLimits {
  const limits: Partial<Record<RlimitResource, number>> = {}
  for (const [resource, label] of Object.entries(LABELS)) {
    const line = text.split('\n').find((candidate) => candidate.startsWith(`${label} `))
    const hard = line?.slice(label.length).trim().split(/\s+/)[1]
    if (hard !== undefined && hard !== 'unlimited' && isResource(resource)) limits[resource] = Number(hard)
  }
  return limits
}

function isResource(name: string): name is RlimitResource {
  return name in LABELS
}

const LABELS: Record<RlimitResource, string> = {
  cpu: 'Max cpu time',
  fsize: 'Max file size',
  data: 'Max data size',
  stack: 'Max stack size',
  core: 'Max core file size',
  rss: 'Max resident set',
  nproc: 'Max processes',
  nofile: 'Max open files',
  memlock: 'Max locked memory',
  as: 'Max address space',
  locks: 'Max file locks',
  sigpending: 'Max pending signals',
  msgqueue: 'Max msgqueue size',
  nice: 'Max nice priority',
  rtprio: 'Max realtime priority',
  rttime: 'Max realtime timeout',
}
