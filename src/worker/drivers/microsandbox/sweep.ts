import { asId, type SandboxId } from '../../../domain/ids.ts'
import type { VmContext } from './context.ts'
import { recordEnd, releaseIfEnded } from './release.ts'
import { followOutput } from './start.ts'
import { listPinnedSandboxes, unpinMountSources } from './mount-sources.ts'

/**
 * Puts in order what an earlier worker left: runs that live go on and are followed again, ended ones are brought to rest, starts that were cut
 * short are undone and forgotten, and images that no disk lies over and no reference names any more go.
 */
export async function adoptRuns(context: VmContext): Promise<void> {
  const { records, storedSandboxes, vmImages } = context
  const live = new Set<string>()
  for (const record of await records.list()) {
    // One whose undoing was itself cut short says "lost" already.
    if (record.started === null && (record.outcome === null || record.outcome.kind === 'lost')) {
      await recordEnd(context, record, { kind: 'lost', message: 'the worker ended while the sandbox was starting' })
      await records.delete(record.run_id)
      continue
    }
    if ((await releaseIfEnded(context, record)).is_released) continue
    live.add(record.sandbox_id)
    followOutput(context, record)
  }
  for (const sandbox of await listPinnedSandboxes(context)) {
    if (!live.has(sandbox)) await unpinMountSources(context, asId<SandboxId>(sandbox))
  }
  const disks = await Promise.all((await storedSandboxes.list()).map((sandbox) => storedSandboxes.read(sandbox)))
  const underDisks = disks.flatMap((disk) => (disk === null ? [] : [disk.image.digest]))
  await vmImages.deleteExcept(new Set([...underDisks, ...(await context.imageDigests())]))
}
