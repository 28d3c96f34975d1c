import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { withStartFailure } from '../../../start-error.ts'
import type { Image } from '../../../images/image.ts'
import { logFieldsOf } from '../../shared/run-records.ts'
import { assertScriptNames } from '../../shared/desired-run.ts'
import type { StartAttempt } from '../../shared/run-supervisor.ts'
import type { OciContext } from '../context.ts'
import { rootfsPaths } from '../rootfs/root-mounts.ts'
import { writeOwnFiles } from '../rootfs/system-files.ts'
import { prepareDisk, resolveRunImage } from '../run/acquire-resources.ts'
import { limitRun } from '../run/limits/limit-runs.ts'
import type { OciRunRecord } from '../run/run-records.ts'
import { recordStart, startRun } from '../run/start.ts'
import { removeWarmSandbox, type WarmSandbox } from './make-warm-sandbox.ts'

type WarmStart = StartAttempt & { readonly record: OciRunRecord; readonly warm: WarmSandbox }
/** `named` resolves once the sandbox has its host name. */
type WarmFinish = WarmStart & { readonly image: Image; readonly hostname: string; readonly named: Promise<void> }

/**
 * Starts a run in the warm sandbox that its record names. Applies what the run has of its own: its disk, limits, host name and
 * files. If the image has changed since the warm sandbox was made, removes the warm sandbox and starts the run in a container of
 * its own. Rejects like `startRun`.
 */
export async function startFromWarm(context: OciContext, desired: DesiredRun, start: WarmStart): Promise<void> {
  const { record, warm, signal, stopwatch } = start
  assertScriptNames(desired.spec)
  const hostname = desired.spec.runtime.hostname ?? desired.slug
  const { pid, startTicks } = warm.init
  // Another process does this during the steps below. It has ended before anything is removed.
  const named = context.commands.callSystem(['hostname', String(pid), String(startTicks), hostname])
  named.catch(() => undefined) // it is thrown where the steps end
  const origin = (): Promise<null> => Promise.resolve(null)
  const resolving = stopwatch.measure('image', resolveRunImage(context, desired, { origin, signal }))
  const [resolved] = await Promise.allSettled([resolving])
  if (resolved.status === 'fulfilled' && isSameImage(resolved.value, warm.image)) {
    await finishStart(context, desired, { ...start, image: resolved.value, hostname, named })
    return
  }
  await Promise.allSettled([named])
  const image = await resolving
  await removeWarmSandbox(context, warm)
  const { range_first, uid_shift } = await context.users.assign(desired.run_id, { hasVolumes: false })
  const { container_id: _removed, ...rest } = record
  const plain = { ...rest, ids: { range_first, uid_shift } }
  context.records.write(plain)
  await startRun(context, desired, { record: plain, signal, stopwatch, resolved: image })
}

function isSameImage(one: Image, other: Image): boolean {
  return one.digest === other.digest && JSON.stringify(one.layers) === JSON.stringify(other.layers)
}

async function finishStart(
  context: OciContext,
  desired: DesiredRun,
  { record, warm, image, hostname, named, signal, stopwatch }: WarmFinish,
): Promise<void> {
  const { spec, network_ranges } = desired
  const paths = rootfsPaths(context.mountDir, warm.id)
  const tree = { root: paths.root, owner: warm.ids.uid_shift, isFresh: true }
  const limits = async (): Promise<void> => {
    limitRun(context, { ...desired, container_id: warm.id })
    context.growth.limit(warm.id)
  }
  const files = async (): Promise<void> => {
    await named
    await writeOwnFiles(tree, { spec, hostname, network: await network, isFirstStart: true })
  }
  const network = stopwatch.measure(
    'network',
    withStartFailure(
      'network',
      "the sandbox's network could not be made",
      context.networks.attach(warm.id, spec.network, network_ranges),
    ),
  )
  const ended = await Promise.allSettled([
    network,
    stopwatch.measure(
      'disk',
      prepareDisk(context, desired, { paths, origin: () => Promise.resolve(null), spare: warm.id }),
    ),
    stopwatch.measure('limits', withStartFailure('host', "the sandbox's limits could not be set", limits())),
    stopwatch.measure('files', withStartFailure('config', "the sandbox's files could not be written", files())),
  ])
  for (const one of ended) if (one.status === 'rejected') throw one.reason
  signal.throwIfAborted()
  context.disks.markReady(desired.sandbox_id, image)
  const { shim, init, facts } = warm
  const started = { uid_shift: warm.ids.uid_shift, runtime: context.runtime, shim, init }
  recordStart(context, { ...record, image: image.config, facts, started })
  context.log.debug({ ...logFieldsOf(desired), container_id: warm.id, phases: stopwatch.phases() }, 'started')
}
