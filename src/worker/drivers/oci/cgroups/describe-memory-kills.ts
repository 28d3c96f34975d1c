import type { RunId } from '../../../../domain/ids.ts'
import type { MemoryKill } from '../../../processes/kernel-log.ts'

/** How many processes a text names. */
const NAMED = 5

/**
 * Describes processes that the kernel killed because memory ran out: which, how much memory they had, and which limit was
 * reached. `kills` may be fewer than `count`, because the kernel's log is not always readable.
 */
export function describeMemoryKills(
  kills: readonly MemoryKill[],
  { run, count, memoryMib }: { readonly run: RunId; readonly count: number; readonly memoryMib: number },
): string {
  const named = kills
    .slice(-NAMED)
    .map(({ program, usedMib }) => `'${program}'${usedMib === null ? '' : ` with ${String(usedMib)} MiB`}`)
  const names = named.length === 0 ? '' : count > named.length ? ` (${named.join(', ')}, …)` : ` (${named.join(', ')})`
  const what = count === 1 ? 'a process' : `${String(count)} processes`
  return `out of memory: the kernel killed ${what}${names} because ${reasonOf(kills.at(-1), run, memoryMib)}`
}

function reasonOf(kill: MemoryKill | undefined, run: RunId, memoryMib: number): string {
  const own = `the sandbox reached its memory limit of ${String(memoryMib)} MiB`
  if (kill?.cgroup === undefined || kill.cgroup === null) return own
  if (kill.limitedBy === null) return 'the machine ran out of memory'
  // The cgroup with the sandbox's limit has the run's name. The one of all sandboxes contains it.
  return kill.limitedBy.includes(`/${run}`) ? own : 'all sandboxes of this machine together reached their memory limit'
}
