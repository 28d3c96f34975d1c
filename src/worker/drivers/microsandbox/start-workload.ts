import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { extname, join } from 'node:path'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { ImageConfig } from '../../images/image.ts'
import { StartError } from '../../start-error.ts'
import { workloadCommand } from '../shared/desired-run.ts'
import { identifyProcess } from '../../processes/process-identity.ts'
import type { VmContext } from './context.ts'
import { environmentOf } from './make-vm-config.ts'
import { vmEnvironment, vmPaths } from './installation.ts'
import { writeJsonAtomically } from '../../../lib/files.ts'
import type { StartedVm } from './vm-records.ts'

/**
 * Starts a run's workload in a watcher process, the program `workload.ts`. The virtual machine must already accept commands.
 * Returns the watcher process, or null if the spec has no workload.
 */
export async function startWorkload(
  { records, home }: Pick<VmContext, 'records' | 'home'>,
  { run_id, sandbox_id, spec }: DesiredRun,
  { image, caBundle }: { readonly image: ImageConfig; readonly caBundle: string },
): Promise<StartedVm['watcher']> {
  const command = workloadCommand(spec, image)
  if (command === null) return null
  const order: WorkloadRequest = {
    socket: vmPaths(home, sandbox_id).agentSocket,
    end_file: records.endFileOf(run_id),
    command,
    env: [...image.env, ...environmentOf(spec, caBundle).map(({ key, value }) => `${key}=${value}`)],
    cwd: spec.runtime.workdir ?? image.workdir,
    user: spec.runtime.user ?? image.user,
  }
  const path = join(records.folderOf(run_id), 'workload.json')
  await writeJsonAtomically(path, order)
  const child = spawn(process.execPath, [WORKLOAD_PROGRAM, WATCHER_MARK, path, run_id], {
    detached: true,
    stdio: 'ignore',
    cwd: '/',
    env: vmEnvironment(home),
  })
  const { pid } = child
  if (pid === undefined)
    throw new StartError('host', 'the host could not start a process', (await once(child, 'error'))[0])
  child.unref()
  return identifyProcess(pid)
}

/** The input of the program `workload.ts`. It is a JSON file, whose path is the argument after `WATCHER_MARK`. */
export type WorkloadRequest = {
  readonly socket: string
  readonly end_file: string
  readonly command: readonly string[]
  readonly env: readonly string[]
  readonly cwd: string | null
  readonly user: string | null
}

/** An argument in the watcher's command line that distinguishes watchers from all other processes. */
export const WATCHER_MARK = 'sandyard-microvm-workload'

/** The program is TypeScript in the repository and JavaScript in the npm package, as this file is. */
const WORKLOAD_PROGRAM = join(import.meta.dirname, `workload${extname(import.meta.filename)}`)
