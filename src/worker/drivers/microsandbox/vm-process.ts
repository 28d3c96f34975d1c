import { readdir } from 'node:fs/promises'
import type { Clock } from '../../../lib/clock.ts'
import {
  commandLineOf,
  isAlive,
  identifyProcess,
  sendSignal,
  type ProcessIdentity,
} from '../../processes/process-identity.ts'

/** Finds every process whose command line contains all of these arguments. */
export async function findProcesses(words: readonly string[]): Promise<readonly ProcessIdentity[]> {
  const found: ProcessIdentity[] = []
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const line = commandLineOf(Number(name))
    if (!words.every((word) => line.includes(word))) continue
    const process = identifyProcess(Number(name))
    if (process !== null) found.push(process)
  }
  return found
}

/** Finds the process of a sandbox's virtual machine: `msb sandbox … --name NAME …` (0.6.18). */
export function findVm(name: string): Promise<readonly ProcessIdentity[]> {
  return findProcesses(['sandbox', '--name', name])
}

const KILL_TIMEOUT_MS = 20_000
const KILL_POLL_MS = 10

/** Kills processes and waits until all of them have ended. Rejects after 20 s. */
export async function killProcesses(processes: readonly ProcessIdentity[], clock: Clock): Promise<void> {
  const deadlineMs = clock.monotonicMs() + KILL_TIMEOUT_MS
  for (const process of processes) if (isAlive(process)) sendSignal(process.pid, 'SIGKILL')
  for (const process of processes) {
    while (isAlive(process)) {
      if (clock.monotonicMs() > deadlineMs) throw new Error(`process ${String(process.pid)} can't be killed`)
      await clock.sleep(KILL_POLL_MS)
    }
  }
}
