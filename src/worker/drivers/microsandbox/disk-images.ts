/**
 * What programs without rights show to microVMs by FUSE. A disk image becomes a raw disk, which the kernel of the guest mounts.
 * The runtime, which is root, opens nothing that an image names. A folder with `stat_virtualization: off` has owners that the
 * runtime can't change.
 */
import { writeFile } from 'node:fs/promises'
import type { SandboxId } from '../../../domain/ids.ts'
import type { Clock } from '../../../lib/clock.ts'
import { localCommands } from '../../../lib/run-command.ts'
import { sendSignal } from '../../processes/process-identity.ts'
import { DISK_IMAGE_SCRIPT, printableEnd, SERVER_USER, WITH_REASON } from '../shared/disk-image-script.ts'
import { findMissingPrograms } from '../shared/machine.ts'
import type { MountDiskImage, MountHostStat } from '../shared/pin-mounts.ts'
import { BlockedPathError } from '../shared/root-tree.ts'
import { findProcesses, killProcesses } from './vm-process.ts'

/** Longer than the script gives an image. */
const MOUNT_TIMEOUT_MS = 70_000
/** How long a server may take to write what it holds in memory. */
const END_TIMEOUT_MS = 10_000
const END_POLL_MS = 20

/** Lists the programs that this machine lacks for disk images of microVMs. */
export function findMissingForVmDisks(): readonly string[] {
  return findMissingPrograms(['qemu-storage-daemon'])
}

/** Lists the programs that it lacks for folders with `stat_virtualization: off`. */
export function findMissingForVmHostStat(): readonly string[] {
  return findMissingPrograms(['bindfs'])
}

/** Returns how the disk images of a sandbox are shown: each as a raw disk at its pin, a file. */
export function makeDiskMounter(storedShift: number, sandbox: SandboxId): MountDiskImage {
  return async ({ host, format, options }, source, pin) => {
    await writeFile(pin, '', { flag: 'wx', mode: 0o600 })
    const flags = [...(options.readonly ? ['ro'] : []), 'disk', markOf(sandbox)]
    const ids = [String(storedShift), String(SERVER_USER)]
    await serve(`the disk image '${host}'`, [source, pin, '', ...ids, format, '', ...flags])
  }
}

/** Returns how folders with `stat_virtualization: off` are shown at their pins. Each server ends when its pin is unmounted. */
export function makeHostStatMounter(storedShift: number): MountHostStat {
  return async (_, source, pin) => {
    const flags = ['nosuid', 'noexec'] // of the machine; the guest has its own
    await serve("a folder with 'stat_virtualization: off'", [
      source,
      pin,
      '',
      String(storedShift),
      '0',
      'folder',
      '',
      ...flags,
    ])
  }
}

/** Runs the script until the server answers. `what` is what is served, for people. */
async function serve(what: string, args: readonly string[]): Promise<void> {
  const options = { timeoutMs: MOUNT_TIMEOUT_MS, cwd: '/' }
  const { code, stderr } = await localCommands.attempt('perl', [DISK_IMAGE_SCRIPT, ...args], options)
  if (code === WITH_REASON) throw new BlockedPathError(`${what}: ${printableEnd(stderr)}`)
  if (code !== 0) throw new Error(`the server of ${what} could not be started: ${printableEnd(stderr)}`)
}

/** Ends the servers of a sandbox's disk images, whose pins are unmounted. They write what they hold first. May be repeated. */
export async function endDiskServers(sandbox: SandboxId, clock: Clock): Promise<void> {
  const find = () => findProcesses([markOf(sandbox)])
  for (const { pid } of await find()) sendSignal(pid, 'SIGTERM')
  const deadlineMs = clock.monotonicMs() + END_TIMEOUT_MS
  while ((await find()).length > 0 && clock.monotonicMs() < deadlineMs) await clock.sleep(END_POLL_MS)
  await killProcesses(await find(), clock)
}

/** An argument in the command line of a server. */
function markOf(sandbox: SandboxId): string {
  return `for=${sandbox}`
}
