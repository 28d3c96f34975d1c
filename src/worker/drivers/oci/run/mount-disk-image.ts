import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { BindMount, DiskImageMount, NamedMount } from '../../../../domain/spec/spec.ts'
import { sendSignal } from '../../../processes/process-identity.ts'
import { DISK_IMAGE_SCRIPT, printableEnd, SERVER_USER, WITH_REASON } from '../../shared/disk-image-script.ts'
import type { MountDiskImage, MountHostStat } from '../../shared/pin-mounts.ts'
import { BlockedPathError } from '../../shared/root-tree.ts'
import type { OciContext } from '../context.ts'
import { limitCommandsOf } from './limits/limit-runs.ts'

/** After this time no further image of a run is mounted. The script itself gives each image as long. */
const IMAGES_TIMEOUT_MS = 60_000

type ServedMount = BindMount | DiskImageMount | NamedMount

type MounterContext = {
  readonly cgroups: Pick<OciContext['cgroups'], 'createForCommands'>
  readonly clock: Pick<OciContext['clock'], 'monotonicMs'>
  readonly settings: Pick<OciContext['settings'], 'sessionsPerSandbox'>
  readonly launcher: Pick<OciContext['launcher'], 'start'>
  readonly records: Pick<OciContext['records'], 'folderOf'>
  readonly runtime: Pick<OciContext['runtime'], 'name'>
  readonly users: Pick<OciContext['users'], 'of'>
}

type Servers = {
  readonly mountDiskImage: MountDiskImage
  readonly mountHostStat: MountHostStat
}

/**
 * Returns how the disk images of a run are mounted, and folders that show the files' own metadata: each by a server of its own, which
 * the kernel asks by FUSE. The server has the limits of the run's commands. It ends when nothing uses the mount any more. `signal` ends
 * the wait for a server that doesn't answer.
 */
export function makeServedMounts(context: MounterContext, desired: DesiredRun, signal: AbortSignal): Servers {
  const beganMs = context.clock.monotonicMs()
  const serve = async (spec: ServedMount, { what, source, pin, user, format, fstype }: Served): Promise<void> => {
    if (context.clock.monotonicMs() - beganMs > IMAGES_TIMEOUT_MS)
      throw new BlockedPathError('the disk images before it took longer than a minute')
    const { uid_shift, namespacePath } = context.users.of(desired.run_id)
    if (namespacePath === null)
      throw new BlockedPathError(`the runtime ${context.runtime.name} can't mount ${what}; crun and runc can`)
    const cgroups = limitCommandsOf(context, desired, context.runtime.name)
    if (spec.type === 'disk_image') await mkdir(pin, { mode: 0o700 })
    const output = join(context.records.folderOf(desired.run_id), 'disk-image-reason')
    await writeFile(output, '', { mode: 0o600 })
    const ids = [namespacePath, String(uid_shift), String(user)]
    const command = ['perl', DISK_IMAGE_SCRIPT, source, pin, ...ids, format, fstype, ...flagsOf(spec)]
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
    if (code === WITH_REASON) throw new BlockedPathError(`${what}: ${printableEnd(reason)}`)
    if (code !== 0) throw new Error(`the server of ${what} could not be started: ${printableEnd(reason)}`)
  }
  return {
    mountDiskImage: (spec, source, pin) => {
      const { format, fstype } = spec
      const what = `the disk image '${spec.host}'`
      return serve(spec, { what, source, pin, user: SERVER_USER, format, fstype: fstype ?? '' })
    },
    mountHostStat: (spec, source, pin) => {
      const { mountMapPath } = context.users.of(desired.run_id)
      const what = "a folder with 'stat_virtualization: off'"
      return serve(spec, { what, source, pin, user: 0, format: 'folder', fstype: mountMapPath ?? '' })
    },
  }
}

type Served = {
  /** What is served, for people. */
  readonly what: string
  readonly source: string
  readonly pin: string
  /** The sandbox's user who serves it. */
  readonly user: number
  readonly format: DiskImageMount['format'] | 'folder'
  /** Of a folder: the user namespace by whose map the server sees it. */
  readonly fstype: string
}

function flagsOf({ options: { readonly, noexec, nosuid } }: ServedMount): readonly string[] {
  return [...(readonly ? ['ro'] : []), ...(noexec ? ['noexec'] : []), ...(nosuid ? ['nosuid'] : [])]
}
