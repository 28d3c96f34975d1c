import { cpus, loadavg, release, totalmem } from 'node:os'

/** Describes the machine and its load in one line. Absolute results mean little without this description. */
export function describeMachine(): string {
  const [cpu] = cpus()
  const memoryGib = Math.round(totalmem() / 1024 ** 3)
  const load = loadavg()[0]?.toFixed(2) ?? '?'
  return `${String(cpus().length)} x ${cpu?.model.trim() ?? 'unknown'}, ${String(memoryGib)} GiB, Linux ${release()}, Node ${process.version}, load before ${load}`
}
