import { existsSync, readdirSync, readFileSync, readlinkSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { hasErrorCode } from '../../src/lib/error-code.ts'
import { runCommand } from '../../src/lib/run-command.ts'

/** How many of each kind the host has, such as `mounts of ext4` or `rules of the packet filter`. No count is 0. */
export type HostCounts = Readonly<Record<string, number>>

/** What belongs to the counted system where it shares something with the rest of the machine. */
type Scope = {
  /** The folder of the counted system. Its loop devices are backed by files in it. */
  readonly folder: string
  /** A part of the path of all its cgroups. */
  readonly cgroup: string
  /** The mounts of other systems, by `mountKeys`. They vanish when their mount points are deleted. */
  readonly foreignMounts: ReadonlySet<string>
}

/** The mounts that this process sees, as one text each. */
export function mountKeys(): ReadonlySet<string> {
  return new Set(linesOf(readOrEmpty('/proc/self/mountinfo')).map(mountKey))
}

/** The device, the root and the mount point of a line of mountinfo. */
function mountKey(line: string): string {
  return line.split(' ').slice(2, 5).join(' ')
}

function linesOf(text: string): readonly string[] {
  return text.split('\n').filter((line) => line !== '')
}

/**
 * Counts what the host holds: processes, their descriptors, namespaces, mounts in all mount namespaces, loop devices,
 * cgroups, network devices, routes, objects of the packet filter, and files. Requires `isOnOwnMachine`, because the counts of
 * a whole machine change with everything else that runs there.
 */
export async function countHost(scope: Scope): Promise<HostCounts> {
  const { folder, cgroup } = scope
  const counts = new Map<string, number>()
  const add = (kind: string, count = 1): void => {
    if (count > 0) counts.set(kind, (counts.get(kind) ?? 0) + count)
  }
  for (const [kind, count] of await networkObjects()) add(kind, count)
  countProcesses(add, scope)
  for (const name of namesIn('/sys/block').filter((block) => block.startsWith('loop')))
    if (readOrEmpty(`/sys/block/${name}/loop/backing_file`).startsWith(folder)) add('loop devices')
  for (const path of cgroupsNaming(cgroup)) {
    add('cgroups')
    add('processes and threads in cgroups', Number(readOrEmpty(join(path, 'pids.current'))))
  }
  for (const kind of ['msg', 'sem', 'shm'])
    add(`SysV ${kind}`, readOrEmpty(`/proc/sysvipc/${kind}`).split('\n').length - 2)
  add('files', countFiles(folder))
  return Object.fromEntries([...counts].toSorted(([one], [other]) => (one < other ? -1 : 1)))
}

type Add = (kind: string, count?: number) => void

function countProcesses(add: Add, scope: Scope): void {
  const namespaces = new Set<string>()
  const mountsOf = new Map<string, string>()
  for (const pid of namesIn('/proc').filter((name) => /^\d+$/.test(name))) {
    const name = readOrEmpty(`/proc/${pid}/comm`).trim()
    if (name === '') continue // it ended after the folder was listed
    add(`processes of ${name}`)
    for (const kind of namesIn(`/proc/${pid}/ns`)) namespaces.add(linkOrEmpty(`/proc/${pid}/ns/${kind}`))
    mountsOf.set(linkOrEmpty(`/proc/${pid}/ns/mnt`), readOrEmpty(`/proc/${pid}/mountinfo`))
    for (const fd of namesIn(`/proc/${pid}/fd`)) {
      const target = linkOrEmpty(`/proc/${pid}/fd/${fd}`)
      const kind = target.startsWith('/') ? 'file' : target.replace(/:\[\d+\]$/, '')
      if (/^\w+:\[\d+\]$/.test(target) && kind !== 'socket' && kind !== 'pipe') namespaces.add(target)
      if (kind !== '') add(`descriptors of ${name}: ${kind}`)
    }
  }
  for (const name of namesIn('/run/netns')) namespaces.add(`net:[${String(statSync(join('/run/netns', name)).ino)}]`)
  for (const namespace of namespaces) if (namespace !== '') add(`namespaces of ${namespace.replace(/:.*/, '')}`)
  for (const mountinfo of mountsOf.values())
    for (const line of linesOf(mountinfo))
      if (!scope.foreignMounts.has(mountKey(line)) && !isForeign(line, scope))
        add(`mounts of ${/ - (\S+)/.exec(line)?.[1] ?? 'nothing'}`)
}

/**
 * Whether a mount is one that other tests made on the machine meanwhile. Where they share mounts, such a mount comes into this mount
 * namespace too. Those of networks come below this test's own `/run/netns`, which has all networks of the counted system.
 */
function isForeign(line: string, { folder, cgroup }: Scope): boolean {
  const point = line.split(' ')[4] ?? ''
  if (point.startsWith('/run/netns/')) return !existsSync(point)
  if (point.startsWith('/run/sandyard/')) return !point.includes(cgroup)
  return point.startsWith(join(tmpdir(), 'sandyard-')) && !point.startsWith(folder)
}

/** Counts the devices, routes and packet filters of this network namespace and all named ones. */
async function networkObjects(): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>()
  const add: Add = (kind, count = 1) => counts.set(kind, (counts.get(kind) ?? 0) + count)
  const script =
    'ip -o link | sed "s/.*/device/"; ip route show table all | sed "s/.*/route/"; echo; nft -j list ruleset'
  for (const entered of [[], ...namesIn('/run/netns').map((name) => ['nsenter', `--net=/run/netns/${name}`])]) {
    const [file = '', ...args] = [...entered, 'sh', '-c', script]
    const { stdout } = await runCommand(file, args, { timeoutMs: 10_000 })
    const [lines = '', json = ''] = stdout.split('\n\n')
    for (const line of lines.split('\n')) add(`network: ${line}s`)
    const { nftables }: { nftables: readonly Record<string, { elem?: readonly unknown[] }>[] } = JSON.parse(json)
    for (const object of nftables) {
      for (const [kind, { elem = [] }] of Object.entries(object)) {
        add(`packet filter: ${kind}s`)
        if (elem.length > 0) add('packet filter: elements', elem.length)
      }
    }
  }
  return counts
}

/** All cgroups with `word` in their path, in every hierarchy. */
function cgroupsNaming(word: string): readonly string[] {
  const below = (folder: string): readonly string[] =>
    readFolder(folder).flatMap((entry) => {
      const path = join(folder, entry.name)
      return entry.isDirectory() ? [...(path.includes(word) ? [path] : []), ...below(path)] : []
    })
  return below('/sys/fs/cgroup')
}

function countFiles(folder: string): number {
  return readFolder(folder).reduce(
    (sum, entry) => sum + 1 + (entry.isDirectory() ? countFiles(join(folder, entry.name)) : 0),
    0,
  )
}

function readFolder(folder: string) {
  return whileItExists(() => readdirSync(folder, { withFileTypes: true }), [])
}

function namesIn(folder: string): readonly string[] {
  return existsSync(folder) ? whileItExists(() => readdirSync(folder), []) : []
}

function readOrEmpty(path: string): string {
  return whileItExists(() => readFileSync(path, 'utf8'), '')
}

function linkOrEmpty(path: string): string {
  return whileItExists(() => readlinkSync(path), '')
}

/** The result of `read`, or `otherwise` if what it reads is gone: processes end at any time. A zombie has no mounts (EINVAL). */
function whileItExists<T>(read: () => T, otherwise: T): T {
  try {
    return read()
  } catch (error) {
    if (['ENOENT', 'ESRCH', 'ENOTDIR', 'EINVAL'].some((code) => hasErrorCode(error, code))) return otherwise
    throw error
  }
}
