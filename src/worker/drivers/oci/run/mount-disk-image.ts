import { readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { DiskImageMount } from '../../../../domain/spec/spec.ts'
import { SANDBOX_IDS } from '../../../../domain/workers/id-range.ts'
import { sendSignal } from '../../../processes/process-identity.ts'
import type { MountDiskImage } from '../../shared/pin-mounts.ts'
import { BlockedPathError } from '../../shared/root-tree.ts'
import type { OciContext } from '../context.ts'
import { DISK_IMAGE_SCRIPT } from './disk-image-abilities.ts'
import { limitCommandsOf } from './limit-runs.ts'

/** The exit code of the script when the image's owner may see its reason. */
const WITH_REASON = 2
const REASON_LENGTH = 300
/** After this time no further image of a run is mounted. The script itself gives each image as long. */
const IMAGES_TIMEOUT_MS = 60_000
/** The sandbox's user who serves images: its last one, which no image or client uses. */
const SERVER_USER = SANDBOX_IDS - 1

type MounterContext = {
  readonly cgroups: Pick<OciContext['cgroups'], 'createForCommands'>
  readonly clock: Pick<OciContext['clock'], 'monotonicMs'>
  readonly settings: Pick<OciContext['settings'], 'sessionsPerSandbox'>
  readonly launcher: Pick<OciContext['launcher'], 'start'>
  readonly records: Pick<OciContext['records'], 'folderOf'>
  readonly runtime: Pick<OciContext['runtime'], 'name'>
  readonly users: Pick<OciContext['users'], 'of'>
}

/**
 * Returns how the disk images of a run are mounted: each by a server of its own, which the kernel asks by FUSE. The server
 * has the limits of the run's commands. It ends when nothing uses the mount any more. `signal` ends the wait for a server that
 * doesn't answer.
 */
export function makeDiskImageMounter(
  context: MounterContext,
  desired: DesiredRun,
  signal: AbortSignal,
): MountDiskImage {
  const beganMs = context.clock.monotonicMs()
  return async (spec, source, pin) => {
    if (context.clock.monotonicMs() - beganMs > IMAGES_TIMEOUT_MS)
      throw new BlockedPathError('the disk images before it took longer than a minute')
    const { uid_shift, namespacePath } = context.users.of(desired.run_id)
    if (namespacePath === null)
      throw new BlockedPathError(`the runtime ${context.runtime.name} can't mount disk images; crun and runc can`)
    const cgroups = await limitCommandsOf(context, desired, context.runtime.name)
    const output = join(context.records.folderOf(desired.run_id), 'disk-image-reason')
    await writeFile(output, '', { mode: 0o600 })
    const ids = [namespacePath, String(uid_shift), String(SERVER_USER)]
    const command = ['perl', DISK_IMAGE_SCRIPT, source, pin, ...ids, spec.format, spec.fstype ?? '', ...flagsOf(spec)]
    const launched = await context.launcher.start(command, ['/dev/null', '/dev/null', output], { cgroups })
    const kill = (): void => {
      sendSignal(-launched.pid, 'SIGKILL')
    }
    if (signal.aborted) kill()
    signal.addEventListener('abort', kill, { once: true })
    const { code } = await launched.ended
    signal.removeEventListener('abort', kill)
    const reason = await readFile(output, 'utf8')
    await rm(output)
    signal.throwIfAborted()
    if (code === WITH_REASON) throw new BlockedPathError(`the disk image '${spec.host}': ${printableEnd(reason)}`)
    if (code !== 0) throw new Error(`the server of a disk image could not be started: ${printableEnd(reason)}`)
  }
}

function flagsOf({ options: { readonly, noexec, nosuid } }: DiskImageMount): readonly string[] {
  return [...(readonly ? ['ro'] : []), ...(noexec ? ['noexec'] : []), ...(nosuid ? ['nosuid'] : [])]
}

/** Returns the end of what a server said, on one line. A server repeats bytes of the image. */
function printableEnd(text: string): string {
  return text
    .replaceAll(/[^\x20-\x7e]+/g, ' ')
    .trim()
    .slice(-REASON_LENGTH)
}
