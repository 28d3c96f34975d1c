import { readFile } from 'node:fs/promises'

/** Ticks per second in /proc (sysconf(3), `_SC_CLK_TCK`): 100 on every Linux that Node runs on. */
const TICKS = 100

/** Reads the processor time that the processes and their ended children have used so far, in seconds. */
export async function readCpuSeconds(pids: readonly number[]): Promise<number> {
  const used = await Promise.all(pids.map(secondsOf))
  return used.reduce((sum, one) => sum + one, 0)
}

async function secondsOf(pid: number): Promise<number> {
  try {
    const stat = await readFile(`/proc/${String(pid)}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    // utime, stime, cutime, cstime (proc(5), fields 14 to 17; the state is field 3).
    return [11, 12, 13, 14].reduce((sum, at) => sum + Number(fields[at]), 0) / TICKS
  } catch {
    return 0 // the process has ended meanwhile
  }
}
