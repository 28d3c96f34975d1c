import type { WantedRun } from '../../../contract/worker-protocol.ts'
import { SENTENCES } from '../../logs/sentences.ts'
import { StartError } from '../driver.ts'
import type { OciContext } from './context.ts'
import { furnish } from './furnish.ts'
import { gatherParts } from './gather.ts'
import { endWith } from './release.ts'
import type { RunRecord } from './run-records.ts'
import { launchShim } from './shim.ts'
import { asStartError } from './start-failure.ts'
import { isScriptName } from './system-files.ts'

/**
 * Starts a run that has no record yet. Rejects with `StartError`; by then nothing of the run is left but its record,
 * ended with that failure.
 */
export async function startRun(context: OciContext, wanted: WantedRun, signal: AbortSignal): Promise<void> {
  const record: RunRecord = {
    version: 1,
    run_id: wanted.run_id,
    sandbox_id: wanted.sandbox_id,
    org_id: wanted.org_id,
    boot_id: context.bootId,
    spec: wanted.spec,
    image: null,
    facts: {},
    started: null,
    is_stop_requested: false,
    outcome: null,
    is_released: false,
  }
  await context.records.write(record)
  context.logs.of(wanted.sandbox_id).openRun()
  try {
    refuseUnusable(wanted)
    await bringUp(context, wanted, { record, signal })
  } catch (error) {
    const failure = signal.aborted
      ? new StartError('cancelled', 'the start was cancelled', error)
      : asStartError('host', error)
    context.log.warn({ run_id: wanted.run_id, reason: failure.reason, err: failure }, 'start failed')
    await cleanUp(context, record, failure)
    throw failure
  }
}

/** What can't be let go of now stays on record as not released, and is tried again with every look at the runs. */
async function cleanUp(context: OciContext, record: RunRecord, failure: StartError): Promise<void> {
  try {
    await endWith(context, record, { kind: 'start_failed', reason: failure.reason, message: failure.message })
  } catch (error) {
    context.log.error({ run_id: record.run_id, err: error }, 'cleaning up after a failed start failed')
  }
}

type Attempt = { readonly record: RunRecord; readonly signal: AbortSignal }
async function bringUp(context: OciContext, wanted: WantedRun, { record, signal }: Attempt): Promise<void> {
  const watch = makeStopwatch(context)
  const parts = await gatherParts(context, wanted, signal)
  watch.lap('parts')
  const { bundle, facts } = await furnish(context, wanted, parts)
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
  const { shim, init } = await launchShim(shimInput)
  context.logs.of(wanted.sandbox_id).system(SENTENCES.started)
  context.captures.begin({ ...record, shim })
  watch.lap('runtime')
  const started = { uid_shift: context.settings.uidShift, runtime, shim, init }
  await records.write({ ...record, image: parts.image.config, facts, started })
  context.log.debug({ run_id: wanted.run_id, ...watch.laps() }, 'started')
}

function refuseUnusable({ spec }: WantedRun): void {
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
