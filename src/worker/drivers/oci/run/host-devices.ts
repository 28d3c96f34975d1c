import { chmod, chown, stat } from 'node:fs/promises'
import { SANDBOX_IDS } from '../../../../domain/workers/id-range.ts'
import type { Log } from '../../../../lib/log.ts'

/** The device nodes that a runtime may have given to a sandbox's user before the driver prevented it. */
const HOST_DEVICES = ['null', 'zero', 'full', 'random', 'urandom', 'tty'].map((name) => `/dev/${name}`)
const DEVICE_MODE = 0o666

/**
 * Gives the host's device nodes back to root if a user of a sandbox owns them. Runtimes gave their standard input to the
 * container's user, which was `/dev/null`. That user could then change the mode, and break the host and every other sandbox.
 */
export async function reclaimHostDevices(log: Log, nodes: readonly string[] = HOST_DEVICES): Promise<void> {
  for (const node of nodes) {
    const { uid, mode } = await stat(node)
    if (uid < SANDBOX_IDS) continue // a user of the host
    await chown(node, 0, 0)
    await chmod(node, DEVICE_MODE)
    log.warn(
      { node, uid, mode: (mode & 0o7777).toString(8) },
      'a device node of the host belonged to a sandbox; root owns it again',
    )
  }
}
