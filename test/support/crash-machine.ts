import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { tryCommand } from '../../src/lib/run-command.ts'
import { mountFolderOf, mountPointsBelow, ociKey } from '../../src/worker/mounts.ts'
import { cgroupFolderOf, cgroupParentOf } from '../../src/worker/drivers/oci/cgroups/open-cgroups.ts'
import { hasErrorCode } from '../../src/lib/error-code.ts'
import { waitUntil } from './wait.ts'

/**
 * Takes from an installation whose server is dead what a crash of the machine takes: all processes of its sandboxes and all its mounts.
 * The files stay as they are.
 */
export async function crashMachine(dataDir: string): Promise<void> {
  const prefix = readFileSync(join(dataDir, 'name-prefix'), 'utf8')
  const runs = cgroupFolderOf(cgroupParentOf(ociKey(prefix)))
  await waitUntil(() => {
    const pids = processesBelow(runs)
    for (const pid of pids) kill(pid)
    return pids.length === 0
  })
  for (const folder of [mountFolderOf(prefix), mountFolderOf(ociKey(prefix)), dataDir])
    for (const point of await mountPointsBelow(folder)) await tryCommand('umount', ['-l', point], { timeoutMs: 20_000 })
}

function processesBelow(folder: string): readonly number[] {
  try {
    const own = readFileSync(join(folder, 'cgroup.procs'), 'utf8').split('\n').filter(Boolean).map(Number)
    const inner = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory())
    return [...own, ...inner.flatMap(({ name }) => processesBelow(join(folder, name)))]
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT', 'ENODEV')) return []
    throw error
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch (error) {
    if (!hasErrorCode(error, 'ESRCH')) throw error
  }
}
