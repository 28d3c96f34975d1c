import { startOtlpReceiver, type ReceivedSpan } from '../test/support/otlp-receiver.ts'
import { waitForDemoImage } from './start.ts'
import { startCloud } from './support/cloud.ts'
import { formatMs, median, quantile } from './support/numbers.ts'
import { ociUnavailableReason } from './support/oci.ts'
import { pause } from './support/pause.ts'
import { drawTimeline } from './support/phase-picture.ts'
import type { ResultRow } from './support/report.ts'
import { deleteByName, loadClient } from './support/sdk.ts'
import { PHASES, timelineOf, worstGap, type ClientTimes, type Timeline } from './support/start-timeline.ts'
import { nowMs, startTap } from './support/tap.ts'

const WARMUPS = 5
const SAMPLES = 40
const QUICK_SAMPLES = 15
/** The pause after each sample, in which the server prepares new disks and networks and finishes deletions. */
const SETTLE_MS = 400
/** The server sends its spans within a second. */
const SPANS_LIMIT_MS = 15_000
const DEMO = 'localhost/demo'

/** Learns about the picture of a median create with its first command, as SVG. */
type OnPicture = (svg: string) => Promise<void>

/**
 * Where the time goes from a create to the end of its first command by the public client. The server’s traces give the
 * phases up to the reply. A proxy between client and server gives the others; it adds some 0.3 ms to each request.
 */
export async function benchPhases(onPicture: OnPicture, isQuick: boolean): Promise<readonly ResultRow[]> {
  const reason = ociUnavailableReason()
  if (reason !== null) throw new Error(`no real sandbox can be started here: ${reason}`)
  await using collector = await startOtlpReceiver()
  await using cloud = await startCloud({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url })
  await waitForDemoImage(cloud)
  await using tap = await startTap(cloud.host, cloud.port)
  const { Sandbox } = await loadClient(cloud, tap.url)
  const samples = isQuick ? QUICK_SAMPLES : SAMPLES
  const seen: { readonly id: string; readonly times: ClientTimes }[] = []
  for (let sample = -WARMUPS; sample < samples; sample++) {
    await pause(SETTLE_MS)
    tap.clear()
    const name = `bench-phases-${String(sample + WARMUPS)}`
    const beganMs = nowMs()
    const box = await Sandbox.builder(name).image(DEMO).cpus(1).memory(512).create()
    await box.exec('true')
    const endedMs = nowMs()
    const times = tap.times()
    const id = await deleteByName(cloud, name)
    if (sample >= 0) seen.push({ id, times: { beganMs, endedMs, timeOf: times } })
  }
  const traces = await waitForTraces(
    collector.spans,
    seen.map(({ id }) => id),
  )
  const timelines = seen.map(({ id, times }) => timelineOf(traces.get(id) ?? [], times))
  await onPicture(pictureOf(timelines))
  return rowsOf(timelines)
}

/** The spans of the start of each sandbox, by its id, once the collector has all of them. */
async function waitForTraces(
  spans: readonly ReceivedSpan[],
  ids: readonly string[],
): Promise<ReadonlyMap<string, readonly ReceivedSpan[]>> {
  const deadlineMs = performance.now() + SPANS_LIMIT_MS
  for (;;) {
    const traces = Map.groupBy(spans, ({ traceId }) => traceId)
    const traceOf = new Map(spans.map(({ attributes, traceId }) => [attributes['sandyard.sandbox.id'], traceId]))
    const found = new Map(ids.map((id) => [id, traces.get(traceOf.get(id) ?? '') ?? []]))
    if ([...found.values()].every((ofOne) => ofOne.some(({ name }) => name === 'report'))) return found
    if (performance.now() > deadlineMs) throw new Error('the server did not send the traces of all starts')
    await pause(100)
  }
}

/** Draws the timeline whose total is the median. */
function pictureOf(timelines: readonly Timeline[]): string {
  const totalMs = median(timelines.map((timeline) => timeline.totalMs))
  const middle = timelines.find((timeline) => timeline.totalMs === totalMs)
  if (middle === undefined) throw new Error('there is no timeline')
  return drawTimeline(middle, `A create and its first command, ${formatMs(totalMs)} ms: the median of ${String(timelines.length)}`) // prettier-ignore
}

function rowsOf(timelines: readonly Timeline[]): readonly ResultRow[] {
  const row = (what: string, samples: readonly number[], more = ''): ResultRow => ({
    benchmark: 'phases',
    what,
    measured: `${formatMs(median(samples))} ms, p95 ${formatMs(quantile(samples, 0.95))}${more}`,
    limit: '',
    ratio: null,
    goal: '',
    isMet: null,
    samples,
  })
  const names = Object.keys(PHASES).filter((name) => timelines.some(({ phases }) => phases.some((one) => one.name === name))) // prettier-ignore
  const gaps = timelines.map(worstGap)
  const worst = gaps.toSorted((one, other) => other.ms - one.ms)[0]
  return [
    ...names.map((name) =>
      row(
        `${name}: ${PHASES[name] ?? ''}`,
        timelines.flatMap(({ phases }) =>
          phases.filter((one) => one.name === name).map(({ fromMs, untilMs }) => untilMs - fromMs),
        ),
      ),
    ),
    row(
      'the worst gap, which no phase explains',
      gaps.map(({ ms }) => ms),
      `, at most ${formatMs(worst?.ms ?? 0)} after ${worst?.after ?? ''}`,
    ),
    row(
      'in all, through the proxy',
      timelines.map(({ totalMs }) => totalMs),
    ),
  ]
}
