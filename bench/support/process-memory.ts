import { readdir, readFile } from 'node:fs/promises'

/** The memory of a process in MiB. `pss` divides shared pages among the processes that share them. `anonymous` is its part without files. */
export type Memory = { readonly rssMib: number; readonly pssMib: number; readonly anonymousMib: number }

/** Reads the current memory use of a process (proc(5), `smaps_rollup`). */
export async function readProcessMemory(pid: number): Promise<Memory> {
  const text = await readFile(`/proc/${String(pid)}/smaps_rollup`, 'utf8')
  const read = (name: string): number => Number(new RegExp(`^${name}: +(\\d+) kB`, 'm').exec(text)?.[1] ?? NaN) / 1024
  return { rssMib: read('Rss'), pssMib: read('Pss'), anonymousMib: read('Pss_Anon') }
}

/** Finds all descendants of a process, without the process itself. */
export async function findDescendants(pid: number): Promise<readonly number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name)).map(Number)
  const parents = new Map(await Promise.all(pids.map(async (one) => [one, await parentOf(one)] as const)))
  const below = (parent: number): readonly number[] =>
    pids.filter((one) => parents.get(one) === parent).flatMap((one) => [one, ...below(one)])
  return below(pid)
}

/** The processes that a server has started. */
export type ServerParts = {
  readonly postgres: readonly number[]
  readonly worker: readonly number[]
  /** Processes of the worker that run Perl. */
  readonly helpers: readonly number[]
}

/** Finds the processes that a server has started. */
export async function findParts(server: number): Promise<ServerParts> {
  const pids = await findDescendants(server)
  const programs = await Promise.all(pids.map(async (pid) => ({ pid, name: await programOf(pid) })))
  const pidsOf = (isOne: (name: string) => boolean): readonly number[] =>
    programs.filter(({ name }) => isOne(name)).map(({ pid }) => pid)
  const isPostgres = (name: string): boolean => name.includes('postgres')
  const isPerl = (name: string): boolean => /(^|\/)perl$/.test(name)
  return {
    postgres: pidsOf(isPostgres),
    helpers: pidsOf(isPerl),
    worker: pidsOf((name) => !isPostgres(name) && !isPerl(name)),
  }
}

/** The command line of a process. Empty if it has ended. */
async function programOf(pid: number): Promise<string> {
  return (await readFile(`/proc/${String(pid)}/cmdline`, 'utf8').catch(() => '')).split('\0')[0] ?? ''
}

async function parentOf(pid: number): Promise<number> {
  try {
    const stat = await readFile(`/proc/${String(pid)}/stat`, 'utf8')
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
  } catch {
    return 0 // the process has ended meanwhile
  }
}
