import { mkdir, readdir, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { Log } from '../../../../lib/log.ts'
import { localCommands } from '../../../../lib/run-command.ts'
import { mount, mountPointsBelow } from '../../../mounts.ts'
import { makeToolbox } from './toolbox.ts'

/** The start of the names of toolboxes among the driver's mounts; all others there are those of runs and disks. */
export const TOOLBOX_PREFIX = 'toolbox-'

/**
 * Makes the toolbox of this machine and mounts it, readonly, among the driver's mounts: the driver's own folder may lie
 * where a sandbox's user 0, as whom some runtimes mount, can't reach it. Gives that path, or null when it can't be made:
 * sandboxes run without, and their files are not offered. Toolboxes that no running sandbox can have are deleted.
 */
export async function mountToolbox(
  folders: { readonly dir: string; readonly mountDir: string },
  log: Log,
): Promise<string | null> {
  const parent = join(folders.dir, 'toolbox')
  try {
    const toolbox = await makeToolbox(parent)
    const point = join(folders.mountDir, `${TOOLBOX_PREFIX}${basename(toolbox)}`)
    await mkdir(point, { recursive: true })
    if (!(await mountPointsBelow(folders.mountDir)).includes(point))
      await mount(localCommands, ['--bind', '-o', 'ro,nosuid,nodev', toolbox, point])
    const mounted = new Set(await readdir(folders.mountDir))
    const unused = (await readdir(parent)).filter((name) => !mounted.has(`${TOOLBOX_PREFIX}${name}`))
    for (const name of unused) await rm(join(parent, name), { recursive: true, force: true })
    return point
  } catch (error) {
    log.warn({ err: error }, 'the programs for sandboxes could not be prepared: their files are not offered')
    return null
  }
}
