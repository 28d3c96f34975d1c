import { cpus, loadavg, release, totalmem } from 'node:os'

/** Describes the machine in one line. Absolute results mean little without this description. */
export function describeMachine(): string {
  const [cpu] = cpus()
  const memoryGib = Math.round(totalmem() / 1024 ** 3)
  return `${String(cpus().length)} x ${cpu?.model.trim() ?? 'unknown'}, ${String(memoryGib)} GiB, Linux ${release()}, Node ${process.version}`
}

/** Describes what else the machine does. Above one process for each core, results are those of a busy machine. */
export function describeLoad(): string {
  const load = loadavg()[0] ?? 0
  return `load ${load.toFixed(2)}${load > cpus().length ? ', BESIDE OTHER WORK' : ''}`
}
