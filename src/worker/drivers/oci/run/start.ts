import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import type { Image } from '../../../images/image.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../../logs/lifecycle-lines.ts'
import { logFieldsOf } from '../../shared/run-records.ts'
import { assertScriptNames, requireSecrets } from '../../shared/desired-run.ts'
import type { StartAttempt } from '../../shared/run-supervisor.ts'
import type { OciContext } from '../context.ts'
import { acquireResources } from './acquire-resources.ts'
import { limitCommandsOf } from './limits/limit-runs.ts'
import { prepareRootfs } from './prepare-rootfs.ts'
import type { OciRunRecord, StartedContainer } from './run-records.ts'
import { startShim } from './runtime/shim.ts'

/**
 * Starts the container of a run. Writes and returns the run's record once the container accepts commands. `resolved` is the image
 * if it is already known.
 */
export async function startRun(
  context: OciContext,
  desired: DesiredRun,
  { record, ...attempt }: StartAttempt & { readonly record: OciRunRecord; readonly resolved?: Image | null },
): Promise<OciRunRecord> {
  const { signal, stopwatch } = attempt
  assertScriptNames(desired.spec)
  requireSecrets(desired)
  const resources = await acquireResources(context, desired, attempt)
  const { facts, ...prepared } = await stopwatch.measure('files', prepareRootfs(context, desired, resources))
  signal.throwIfAborted()
  context.growth.limit(desired.run_id) // not before: the worker's own files may take of the reserve
  const { runtime, launcher, records, clock } = context
  const { pipes, paths, image } = resources
  const { run_id } = desired
  const shim = {
    run: run_id,
    ...prepared,
    commandCgroups: () => limitCommandsOf(context, desired, runtime.name),
    rootBase: paths.base,
    pipes,
    runtime,
    launcher,
    records,
    clock,
    signal,
  }
  const processes = await stopwatch.measure('runtime', startShim(shim))
  const { uid_shift } = context.users.of(run_id)
  const started = { uid_shift, runtime, ...processes }
  const written = recordStart(context, { ...record, image: image.config, facts, started })
  context.log.debug({ ...logFieldsOf(desired), phases: stopwatch.phases() }, 'started')
  return written
}

/** Writes the record of a run whose container accepts commands, and begins to read its output. */
export function recordStart(
  { logs, captures, records }: Pick<OciContext, 'logs' | 'captures' | 'records'>,
  record: OciRunRecord & { readonly started: StartedContainer },
): OciRunRecord {
  writeSystemLine(logs.writerOf(record.sandbox_id), record.log_level, LIFECYCLE_LINES.started)
  captures.begin({ ...record, shim: record.started.shim })
  records.write(record)
  return record
}
