import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { LIFECYCLE_LINES } from '../../../logs/lifecycle-lines.ts'
import { logFieldsOf } from '../../shared/run-records.ts'
import { assertScriptNames } from '../../shared/desired-run.ts'
import type { OciContext } from '../context.ts'
import { acquireResources } from './acquire-resources.ts'
import { prepareRootfs } from './prepare-rootfs.ts'
import type { OciRunRecord } from './run-records.ts'
import { startShim } from './shim.ts'

/**
 * Starts the container of a run, and writes the run's record once the container accepts commands. Implements
 * `RunOperations.start`. Logs how long each step took.
 */
export async function startRun(
  context: OciContext,
  desired: DesiredRun,
  { record, signal }: { readonly record: OciRunRecord; readonly signal: AbortSignal },
): Promise<void> {
  assertScriptNames(desired.spec)
  const stopwatch = makeStopwatch(context)
  const resources = await acquireResources(context, desired, signal)
  stopwatch.lap('resources')
  const { bundle, facts } = await prepareRootfs(context, desired, resources)
  stopwatch.lap('files')
  signal.throwIfAborted()
  context.growth.limit(desired.run_id) // not before: the worker's own files may take of the reserve
  const { runtime, launcher, records, clock } = context
  const { pipes, paths, image } = resources
  const { run_id, sandbox_id } = desired
  const processes = await startShim({
    run: run_id,
    bundle,
    rootBase: paths.base,
    pipes,
    runtime,
    launcher,
    records,
    clock,
    signal,
  })
  context.logs.writerOf(sandbox_id).system(LIFECYCLE_LINES.started)
  context.captures.begin({ ...record, shim: processes.shim })
  stopwatch.lap('runtime')
  const { uid_shift } = context.users.of(run_id)
  const started = { uid_shift, runtime, ...processes }
  await records.write({ ...record, image: image.config, facts, started })
  context.log.debug({ ...logFieldsOf(desired), ...stopwatch.laps() }, 'started')
}

type Stopwatch = { lap(name: string): void; laps(): Readonly<Record<string, number>> }

/** Creates a stopwatch that measures steps in milliseconds, for the log. */
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
