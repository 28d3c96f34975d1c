import { readFileSync } from 'node:fs'

/** Reads the memory of a process in MiB (proc(5), `VmRSS`). */
export function residentMib(pid: number): number {
  const status = readFileSync(`/proc/${String(pid)}/status`, 'utf8')
  return Math.round(Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1]) / 1024)
}
