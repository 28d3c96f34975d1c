import type { CommandRunner } from '../../../../lib/run-command.ts'
import { unmountBelow } from '../../../mounts.ts'
import { isServed } from '../../shared/pin-mounts.ts'
import type { OciContext } from '../context.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import { containerIdOf, type OciRunRecord } from './run-records.ts'

/** How long a server may take to write what it holds in memory to its image. */
const END_TIMEOUT_MS = 10_000
/** The same after a failed start, in which no process of the sandbox has written anything. */
const UNUSED_END_TIMEOUT_MS = 500
const END_POLL_MS = 5

/**
 * Unmounts a run's disk images and other served mounts, and waits until their servers have ended, so that no write is
 * lost. The processes of the sandbox must have ended. Logs a server that doesn't end; the caller kills it.
 */
export async function endImageServers(
  context: Pick<OciContext, 'clock' | 'log' | 'mountDir'> & {
    readonly cgroups: Pick<OciContext['cgroups'], 'commandPids'>
    readonly commands: CommandRunner
  },
  record: Pick<OciRunRecord, 'run_id' | 'container_id' | 'spec' | 'started'>,
): Promise<void> {
  const { run_id, spec, started } = record
  const container = containerIdOf(record)
  if (!spec.mounts.some(isServed)) return
  try {
    await unmountBelow(rootfsPaths(context.mountDir, container).pins, context)
  } catch (error) {
    context.log.warn({ run_id, error }, 'a disk image can not be unmounted; its server is killed')
    return // the caller unmounts again
  }
  const deadlineMs = context.clock.monotonicMs() + (started === null ? UNUSED_END_TIMEOUT_MS : END_TIMEOUT_MS)
  while ((await context.cgroups.commandPids(container)).length > 0) {
    if (context.clock.monotonicMs() > deadlineMs) {
      if (started === null) return
      context.log.warn(
        { run_id },
        'the server of a disk image does not end; it is killed, and its last writes may be lost',
      )
      return
    }
    await context.clock.sleep(END_POLL_MS)
  }
}
