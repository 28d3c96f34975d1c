import { constants, openSync } from 'node:fs'
import { chown } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * The two named pipes that a workload writes to. The shim keeps them open for reading and writing. While the worker is
 * down, a workload therefore blocks once a pipe is full, and never gets a broken pipe. The pipes are in the run's
 * folder, which only root may enter. The workload gets them only as open files.
 */
export type WorkloadPipes = { readonly stdout: string; readonly stderr: string }

/** Returns the paths of the pipes in a run's folder. */
export function workloadPipes(folder: string): WorkloadPipes {
  return { stdout: join(folder, 'stdout'), stderr: join(folder, 'stderr') }
}

/** Creates the pipes. Replaces the pipes of an interrupted start. */
export async function makeWorkloadPipes(commands: HostCommands, { stdout, stderr }: WorkloadPipes): Promise<void> {
  // Every user may open the pipes: a process must be able to reopen its /dev/stdout after it changed its user.
  await commands.callSystem(['fifos', stdout, stderr])
}

/**
 * Makes the workload's user the owner of the pipes. Programs in some images `chown` their /dev/stdout, which fails
 * unless the pipe's current owner exists in the sandbox.
 */
export async function chownWorkloadPipes({ stdout, stderr }: WorkloadPipes, owner: number): Promise<void> {
  await Promise.all([stdout, stderr].map((path) => chown(path, owner, owner)))
}

/** Opens the reading end without blocking. Throws when the pipe is missing. */
export function openPipeToRead(path: string): Socket {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  return new Socket({ fd, readable: true, writable: false })
}
