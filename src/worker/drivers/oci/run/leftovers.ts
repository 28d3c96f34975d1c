import { existsSync } from 'node:fs'
import { readdir, rmdir } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId } from '../../../../domain/ids.ts'
import type { OciContext } from '../context.ts'
import { unmountBelow } from '../../../mounts.ts'
import { commandLineOf, sendSignal } from '../../../processes/process-identity.ts'
import { recordEnd, deleteFromRuntime, killProcesses, removeMounts, releaseIfEnded } from './release.ts'
import type { OciRunRecord, StartedContainer } from './run-records.ts'
import { SHIM_NAME } from './shim.ts'
import { TOOLBOX_PREFIX } from '../rootfs/toolbox-mount.ts'

/** Takes back the folder for mounts and the parent of cgroups when no run is left in them. */
export async function removeIfUnused({ mountDir, cgroups, clock, commands }: OciContext): Promise<void> {
  if (!existsSync(mountDir)) return
  const names = await readdir(mountDir)
  const toolboxes = names.filter(isToolbox)
  if (names.length > toolboxes.length || (await cgroups.list()).length > 0) return
  await unmountBelow(mountDir, { clock, commands })
  for (const name of toolboxes) await rmdir(join(mountDir, name))
  await rmdir(mountDir)
  await cgroups.close()
}

/**
 * Puts in order what an earlier worker left: ended runs are brought to rest, starts that were cut short are undone and
 * forgotten, and whatever names a run without a readable record goes.
 */
export async function adoptRuns(context: OciContext): Promise<void> {
  const { records, cgroups, mountDir } = context
  const known = new Set<RunId>()
  for (const record of await records.list()) {
    // One whose undoing was itself cut short says "lost" already.
    if (record.started === null && (record.outcome === null || record.outcome.kind === 'lost')) {
      await killShim(record.run_id)
      await recordEnd(context, record, { kind: 'lost', message: 'the worker ended while the sandbox was starting' })
      await records.delete(record.run_id)
      continue
    }
    known.add(record.run_id)
    const { outcome, started } = await releaseIfEnded(context, record)
    if (outcome === null) resumeCapture(context, record, started)
  }
  const mounted = (await readdir(mountDir)).filter((name) => !isToolbox(name))
  const named = [...(await records.names()), ...(await cgroups.list()), ...mounted]
  for (const run of new Set(named.map((name) => asId<RunId>(name)))) {
    if (!known.has(run)) await removeUnrecorded(context, run)
  }
}

function isToolbox(name: string): boolean {
  return name.startsWith(TOOLBOX_PREFIX)
}

/** Goes on reading what a run that lives writes. */
function resumeCapture({ logs, captures }: OciContext, record: OciRunRecord, started: StartedContainer | null): void {
  logs.writerOf(record.sandbox_id).openRun()
  captures.begin({ ...record, shim: started?.shim ?? null })
}

async function removeUnrecorded(context: OciContext, run: RunId): Promise<void> {
  await killShim(run)
  await killProcesses(context, run)
  await deleteFromRuntime(context, context.runtime, run)
  await Promise.all([context.networks.detach(run), context.cgroups.remove(run), removeMounts(context, run)])
  await context.records.delete(run)
}

/** The shim of a start that was cut short is in no record and may still be at work: it is found by its command line. */
async function killShim(run: RunId): Promise<void> {
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const words = commandLineOf(Number(name))
    if (words.includes(SHIM_NAME) && words.includes(run)) sendSignal(-Number(name), 'SIGKILL')
  }
}
