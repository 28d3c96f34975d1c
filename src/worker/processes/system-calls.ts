import { join } from 'node:path'
import type { CommandRunner } from '../../lib/run-command.ts'

/** Where the calls are made from; `CommandHelper` has processes that have it loaded. */
export const SYSTEM_CALLS_SCRIPT = join(import.meta.dirname, '../perl/system-calls.pl')

/** What `system-calls.pl` does; each rejects with `CommandError`, in words, when the kernel refuses. */
type SystemCall =
  /** Copies a file to a new one, for its owner alone, without the blocks in which nothing is. */
  | readonly ['copy', from: string, to: string]
  /** Makes named pipes that everybody may open who gets to them, in place of what is there. */
  | readonly ['fifos', ...paths: string[]]
  /** Mounts a disk, which is a file, on a folder, and makes `upper`, which is the owner's, and `work` in it. */
  | readonly ['disk', image: string, folder: string, owner: string]
  /** Mounts layers, the lowest first, on the folder `root` in `base`, beneath the disk that is mounted on `disk` there. */
  | readonly ['root', base: string, options: string, ...layers: string[]]
  /** Makes a network namespace with a loopback device, in which every port may be listened on. */
  | readonly ['network', path: string]
  /** The same with a cable to the router's: there it ends in `device`, which has the address `gateway`. */
  | readonly ['network', path: string, router: string, device: string, gateway: string, address: string, prefix: string]

/** Far above what one takes (2026-11: 1 to 10 ms), so that only a hung one meets it. */
const TIMEOUT_MS = 20_000

/** Has the kernel do one thing that Node can't ask it for. */
export async function callSystem(commands: CommandRunner, call: SystemCall): Promise<void> {
  await commands.run('perl', [SYSTEM_CALLS_SCRIPT, ...call], { timeoutMs: TIMEOUT_MS, cwd: '/' })
}
