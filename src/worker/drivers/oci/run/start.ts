import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { LIFECYCLE_LINES } from '../../../logs/lifecycle-lines.ts'
import { attemptStart } from '../../shared/attempt-start.ts'
import { StartError } from '../../../start-error.ts'
import { newRunRecord } from '../../shared/run-record.ts'
import type { OciContext } from '../context.ts'
import { prepareRootfs } from './prepare-rootfs.ts'
import { acquireResources } from './acquire-resources.ts'
import { recordEnd } from './release.ts'
import type { OciRunRecord } from './run-records.ts'
import { startShim } from './shim.ts'
import { isScriptName } from '../../shared/system-files.ts'

/**
 * Starts a run that has no record yet. Rejects with `StartError`; by then nothing of the run is left but its record,
 * ended with that failure.
 */
export async function startRun(context: OciContext, wanted: DesiredRun, signal: AbortSignal): Promise<void> {
  const record: OciRunRecord = { ...newRunRecord(wanted, context.bootId), spec: wanted.spec, image: null }
  await context.records.write(record)
  context.logs.writerOf(wanted.sandbox_id).openRun()
  await attemptStart({
    run: wanted.run_id,
    log: context.log,
    signal,
    bringUp: () => bringUp(context, wanted, { record, signal }),
    endWith: (outcome) => recordEnd(context, record, outcome),
  })
}

type BringUp = { readonly record: OciRunRecord; readonly signal: AbortSignal }
async function bringUp(context: OciContext, wanted: DesiredRun, { record, signal }: BringUp): Promise<void> {
  refuseUnusable(wanted)
  const watch = makeStopwatch(context)
  const parts = await acquireResources(context, wanted, signal)
  watch.lap('parts')
  const { bundle, facts } = await prepareRootfs(context, wanted, parts)
  watch.lap('files')
  signal.throwIfAborted()
  const { runtime, launcher, records, clock } = context
  const rootBase = parts.paths.base
  const shimInput = {
    run: wanted.run_id,
    bundle,
    rootBase,
    pipes: parts.pipes,
    runtime,
    launcher,
    records,
    clock,
    signal,
  }
  const { shim, init } = await startShim(shimInput)
  context.logs.writerOf(wanted.sandbox_id).system(LIFECYCLE_LINES.started)
  context.captures.begin({ ...record, shim })
  watch.lap('runtime')
  const started = { uid_shift: context.settings.uidShift, runtime, shim, init }
  await records.write({ ...record, image: parts.image.config, facts, started })
  context.log.debug({ run_id: wanted.run_id, ...watch.laps() }, 'started')
}

function refuseUnusable({ spec }: DesiredRun): void {
  const name = Object.keys(spec.runtime.scripts).find((candidate) => !isScriptName(candidate))
  if (name !== undefined) throw new StartError('config', `'${name}' is not usable as the name of a script`)
}

type Stopwatch = { lap(name: string): void; laps(): Readonly<Record<string, number>> }

/** Milliseconds of each step, for the log. */
function makeStopwatch({ clock }: OciContext): Stopwatch {
  const laps: Record<string, number> = {}
  let lastMs = clock.monotonicMs()
  return {
    lap(name) {
      const nowMs = clock.monotonicMs()
      laps[`${name}_ms`] = Math.round((nowMs - lastMs) * 10) / 10
      lastMs = nowMs
    },
    laps: () => laps,
  }
}
