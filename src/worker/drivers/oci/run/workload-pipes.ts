import { constants, openSync } from 'node:fs'
import { chown } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * The two named pipes that a workload writes to. The shim holds them open for reading and writing. So while the worker is
 * away, a workload blocks once they are full and never gets a broken pipe. They lie in the run's folder, which only root
 * may enter; the workload sees them only as open files.
 */
export type WorkloadPipes = { readonly stdout: string; readonly stderr: string }

/** The paths of the pipes in a run's folder. */
export function workloadPipes(folder: string): WorkloadPipes {
  return { stdout: join(folder, 'stdout'), stderr: join(folder, 'stderr') }
}

/** Creates the pipes, in place of those of a start that was cut short. */
export async function makeWorkloadPipes(commands: HostCommands, { stdout, stderr }: WorkloadPipes): Promise<void> {
  // Anyone may open them: a process must be able to reopen its /dev/stdout after it changed its user.
  await commands.callSystem(['fifos', stdout, stderr])
}

/** Makes the workload's user own the pipes: images `chown` their /dev/stdout, which only a known owner may do. */
export async function chownWorkloadPipes({ stdout, stderr }: WorkloadPipes, owner: number): Promise<void> {
  await Promise.all([stdout, stderr].map((path) => chown(path, owner, owner)))
}

/** Opens the reading end without blocking. Throws when the pipe is missing. */
export function openPipeToRead(path: string): Socket {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  return new Socket({ fd, readable: true, writable: false })
}
