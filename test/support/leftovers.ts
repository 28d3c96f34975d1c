import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../src/lib/error-code.ts'
import { tryCommand } from '../../src/lib/run-command.ts'
import { mountFolderOf, mountPointsBelow } from '../../src/worker/mounts.ts'

const COMMAND_TIMEOUT_MS = 10_000

/**
 * Lists what an installation has on this machine besides its files: mounts, loop devices, network namespaces, network
 * devices, packet filter tables, cgroups, containers and processes. The list must be empty once the installation and
 * its sandboxes are stopped.
 */
export async function findLeftovers(dataDir: string): Promise<readonly string[]> {
  const prefix = readFileSync(join(dataDir, 'name-prefix'), 'utf8')
  const own = mountFolderOf(prefix)
  const [below, data, mounts, pool, loops, ownLoops, links, tables] = await Promise.all([
    mountPointsBelow(dataDir),
    mountPointsBelow(own),
    mountPointsBelow(`${own}-sandboxes`),
    mountPointsBelow(`${own}-volumes`),
    linesOf('losetup', ['-a'], dataDir),
    linesOf('losetup', ['-a'], own),
    linesOf('ip', ['-o', 'link'], `sy${prefix}`),
    linesOf('nft', ['list', 'tables'], `sandyard_${prefix}`),
  ])
  return [
    ...[...below, ...data, ...mounts, ...pool].map((point) => `mount ${point}`),
    ...[...loops, ...ownLoops].map((line) => `loop device ${line}`),
    ...links.map((line) => `network device ${line}`),
    ...tables.map((line) => `packet filter ${line}`),
    ...namesIn('/run/netns', (name) => name.startsWith(`sy-${prefix}-`)).map((name) => `network namespace ${name}`),
    ...namesIn(join(dataDir, 'runtime/crun')).map((name) => `container ${name}`),
    ...cgroupsOf(`${prefix}-sandboxes`).map((path) => `cgroup ${path}`),
    ...processesNaming([dataDir, own]).map((line) => `process ${line}`),
  ]
}

/** The ids of the runs of an installation that have a container of its OCI runtime. */
export function findContainers(dataDir: string): readonly string[] {
  const containers = new Set(namesIn(join(dataDir, 'runtime/crun')))
  return [...runsByContainer(dataDir)].flatMap(([container, run]) => (containers.has(container) ? [run] : []))
}

/** The containers of an installation that no run has. While its worker runs, these are its warm sandboxes. */
export function findContainersWithoutRun(dataDir: string): readonly string[] {
  const runs = runsByContainer(dataDir)
  return namesIn(join(dataDir, 'runtime/crun')).filter((container) => !runs.has(container))
}

/** The ids of the recorded runs, by the ids of their containers. */
export function runsByContainer(dataDir: string): ReadonlyMap<string, string> {
  const folder = join(dataDir, 'sandboxes/runs')
  return new Map(
    namesIn(folder).flatMap((run) => {
      const text = readOrNull(join(folder, run, 'state.json'))
      if (text === null) return []
      const { container_id: container = run } = JSON.parse(text) as { container_id?: string } // the driver's own file
      return [[container, run] as const]
    }),
  )
}

/** Reads a file, or returns null if there is none. A run may end while it is looked at. */
function readOrNull(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return null
    throw error
  }
}

/** The cgroups of an installation's runs, in all hierarchies of cgroup version 1 or in that of version 2. */
function cgroupsOf(parent: string): readonly string[] {
  const roots = ['', ...namesIn('/sys/fs/cgroup')].map((hierarchy) => join('/sys/fs/cgroup', hierarchy))
  return roots.flatMap((root) => {
    const path = join(root, 'sandyard', parent)
    return existsSync(path) ? [path] : []
  })
}

/** The processes whose command line contains one of these words, except this process. */
function processesNaming(words: readonly string[]): readonly string[] {
  return namesIn('/proc', (name) => /^\d+$/.test(name) && Number(name) !== process.pid).flatMap((pid) => {
    const line = commandLineOf(pid)
    return words.some((word) => line.includes(word)) ? [`${pid} ${line}`] : []
  })
}

function commandLineOf(pid: string): string {
  try {
    return readFileSync(join('/proc', pid, 'cmdline'), 'utf8')
      .replaceAll('\0', ' ')
      .trim()
  } catch {
    return '' // the process ended after the folder was listed
  }
}

async function linesOf(file: string, args: readonly string[], word: string): Promise<readonly string[]> {
  const { stdout } = await tryCommand(file, args, { timeoutMs: COMMAND_TIMEOUT_MS })
  return stdout.split('\n').filter((line) => line.includes(word))
}

function namesIn(folder: string, isMeant: (name: string) => boolean = () => true): readonly string[] {
  return existsSync(folder) ? readdirSync(folder).filter(isMeant) : []
}
