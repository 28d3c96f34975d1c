import type { ReceivedSpan } from '../../test/support/otlp-receiver.ts'
import type { MessageKind } from './tap.ts'

/** A phase of a create with its first command, in milliseconds from the beginning. `start …` phases may overlap. */
export type TimedPhase = { readonly name: string; readonly fromMs: number; readonly untilMs: number }

/** The phases of one create with its first command. `totalMs` is what the client waited. */
export type Timeline = { readonly phases: readonly TimedPhase[]; readonly totalMs: number }

/** When the client began and ended, in milliseconds since 1970, and what the tap between it and the server noted. */
export type ClientTimes = {
  readonly beganMs: number
  readonly endedMs: number
  readonly timeOf: (kind: MessageKind) => number
}

/** What each phase is, in the order of a create. */
export const PHASES: Readonly<Record<string, string>> = {
  client: 'the client sends its request',
  request: 'the server reads and checks it',
  commit: 'the sandbox is committed',
  placement: 'a worker is chosen and committed',
  'hand-over': 'the answer to the worker’s sync brings the run',
  'start image': 'the image is resolved',
  'start disk': 'the disk is ready',
  'start rootfs': 'the image is mounted over the disk',
  'start mounts': 'volumes and mounts are pinned',
  'start network': 'the network is ready',
  'start limits': 'the cgroup is ready',
  'start output': 'pipes for the output are made',
  'start files': 'system files are written',
  'start runtime': 'the runtime creates and starts the container',
  report: 'the worker’s report is committed',
  reply: 'the wait ends and the reply is sent',
  'look-up': 'the client looks the sandbox up again',
  channel: 'a channel opens, up to the agent’s greeting',
  command: 'the command starts and ends',
  'client, end': 'the client takes the result',
}

/** Makes the timeline from the spans of one trace and from what the client saw. */
export function timelineOf(spans: readonly ReceivedSpan[], { beganMs, endedMs, timeOf }: ClientTimes): Timeline {
  const span = (name: string): ReceivedSpan => {
    const found = spans.find((one) => one.name === name)
    if (found === undefined) throw new Error(`the trace has no span '${name}'`)
    return found
  }
  const [admission, placement, delivery] = [span('admission'), span('placement'), span('delivery')]
  const report = span('report')
  const starts = spans.filter(({ name }) => name.startsWith('start '))
  const absolute: TimedPhase[] = [
    { name: 'client', fromMs: beganMs, untilMs: timeOf('create') },
    { name: 'request', fromMs: timeOf('create'), untilMs: admission.fromMs },
    { name: 'commit', fromMs: admission.fromMs, untilMs: admission.untilMs },
    { name: 'placement', fromMs: Math.max(placement.fromMs, admission.untilMs), untilMs: placement.untilMs },
    { name: 'hand-over', fromMs: Math.max(delivery.fromMs, placement.untilMs), untilMs: delivery.untilMs },
    ...starts.map(({ name, fromMs, untilMs }) => ({ name, fromMs, untilMs })),
    { name: 'report', fromMs: report.fromMs, untilMs: report.untilMs },
    { name: 'reply', fromMs: report.untilMs, untilMs: timeOf('created') },
    { name: 'look-up', fromMs: timeOf('created'), untilMs: timeOf('channel') },
    { name: 'channel', fromMs: timeOf('channel'), untilMs: timeOf('ready') },
    { name: 'command', fromMs: timeOf('ready'), untilMs: timeOf('exited') },
    { name: 'client, end', fromMs: timeOf('exited'), untilMs: endedMs },
  ]
  // Rows have whole milliseconds, so a span may seem to end just before it begins.
  const phases = absolute.map(({ name, fromMs, untilMs }) => ({
    name,
    fromMs: fromMs - beganMs,
    untilMs: Math.max(fromMs, untilMs) - beganMs,
  }))
  return { phases, totalMs: endedMs - beganMs }
}

/** The longest time within a timeline that no phase explains: between which phases, and how long in milliseconds. */
export function worstGap({ phases, totalMs }: Timeline): { readonly after: string; readonly ms: number } {
  let worst = { after: 'the beginning', ms: 0 }
  let last = { name: 'the beginning', untilMs: 0 }
  const ordered = phases.toSorted((one, other) => one.fromMs - other.fromMs)
  for (const phase of [...ordered, { name: 'the end', fromMs: totalMs, untilMs: totalMs }]) {
    const ms = phase.fromMs - last.untilMs
    if (ms > worst.ms) worst = { after: last.name, ms }
    if (phase.untilMs > last.untilMs) last = phase
  }
  return worst
}
