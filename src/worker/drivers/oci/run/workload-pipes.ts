import { constants, openSync } from 'node:fs'
import { chown } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * The two named pipes that a workload writes to. The shim holds them open for reading and writing, so that a workload
 * whose worker is away waits once they are full, and never meets a broken pipe. They lie in the run's folder, where
 * only root comes; the workload knows them as open files alone.
 */
export type WorkloadPipes = { readonly stdout: string; readonly stderr: string }

/** Where the pipes of a run lie that has this folder. */
export function workloadPipes(folder: string): WorkloadPipes {
  return { stdout: join(folder, 'stdout'), stderr: join(folder, 'stderr') }
}

/** Makes them, in place of those of an attempt that was cut short. */
export async function makeWorkloadPipes(commands: HostCommands, { stdout, stderr }: WorkloadPipes): Promise<void> {
  // As in fifo-pool.ts: whatever user a process becomes, it must be able to reopen its /dev/stdout.
  await commands.callSystem(['fifos', stdout, stderr])
}

/** Gives them to the workload's user: images `chown` their /dev/stdout, which only an owner whom they know may. */
export async function chownWorkloadPipes({ stdout, stderr }: WorkloadPipes, owner: number): Promise<void> {
  await Promise.all([stdout, stderr].map((path) => chown(path, owner, owner)))
}

/** The end that reads; it never waits. Throws when the pipe is not there. */
export function openPipeToRead(path: string): Socket {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  return new Socket({ fd, readable: true, writable: false })
}
