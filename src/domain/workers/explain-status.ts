import type { CauseCode, SandboxStatus, StatusReason } from '../sandboxes/lifecycle.ts'
import { CAUSES } from '../sandboxes/lifecycle.ts'
import type { MissingRequirement } from './explain-placement.ts'
import {
  ADVICE_OF_CAUSE,
  ADVICE_OF_OUTCOME,
  ADVICE_OF_START_FAILURE,
  type AdviceNames,
} from '../sandboxes/status-advice.ts'
import type { RunOutcome } from '../sandboxes/run.ts'

/** What is known about the state of a sandbox. */
export type StatusFacts = {
  readonly name: string
  readonly slug: string
  readonly org: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly is_deleted: boolean
  readonly is_org_suspended: boolean
  readonly last_failure_message: string | null
  /** When its restart policy starts it again. Null: it doesn't. */
  readonly restart_at: Date | null
  /** The worker of the latest run, or the one that stores the disk. */
  readonly worker: string | null
  /** Whether that worker reports. Null: there is no worker. */
  readonly is_worker_live: boolean | null
  /** How many server processes renewed their row within the last seconds. Only a server places and stops runs. */
  readonly live_servers: number
  /** The cause of the last change, or of the stop that was asked for. Null: unknown, because its events are deleted. */
  readonly cause: CauseCode | null
  /** How the latest run ended. */
  readonly outcome: RunOutcome | null
  /** Null: it doesn't wait for capacity. */
  readonly waiting: {
    readonly position: number
    readonly waiting: number
    readonly missing: readonly MissingRequirement[]
  } | null
}

/** A state in words: where a sandbox stands, why, and what would help. */
export type StatusExplanation = {
  readonly state: string
  readonly reasons: readonly string[]
  readonly advice: readonly string[]
}

/** Explains a state in words. Every status, reason, cause, outcome and start failure has words. */
export function explainStatus(given: StatusFacts): StatusExplanation {
  const facts = { ...given, name: quoteForShell(given.name) } // the name is used in commands only
  if (facts.is_deleted) return { state: 'is deleted', reasons: causeOf(facts), advice: ADVICE_OF_CAUSE.deleted(facts) }
  const explained = withRestart(facts, EXPLANATIONS[facts.status](facts))
  if (!facts.is_org_suspended) return explained
  return {
    ...explained,
    reasons: [...explained.reasons, `the organization '${facts.org}' is suspended, so nothing of it may start`],
    advice: [...new Set([`end the suspension: sandyard org resume ${facts.org}`, ...explained.advice])],
  }
}

function withRestart({ name, restart_at }: StatusFacts, explained: StatusExplanation): StatusExplanation {
  if (restart_at === null) return explained
  return {
    ...explained,
    state: `${explained.state}, and its label sandyard.restart starts it again at ${restart_at.toISOString()}`,
    advice: [...explained.advice, `end the restarts: msb stop ${name}`],
  }
}

/** Quotes a name, which a tenant chose, so that an operator can paste a command that contains it. */
function quoteForShell(name: string): string {
  return /^[A-Za-z0-9_.][A-Za-z0-9_.-]*$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`
}

const EXPLANATIONS: Readonly<Record<SandboxStatus, (facts: StatusFacts) => StatusExplanation>> = {
  created: ({ name }) => ({
    state: 'was created and never started',
    reasons: [],
    advice: [`start it: msb start ${name}`],
  }),
  starting: (facts) =>
    facts.status_reason === null ? explainPlacedStart(facts) : EXPLANATIONS_OF_WAIT[facts.status_reason](facts),
  running: (facts) => ({
    state: `is running${on(facts)}`,
    reasons: silence(facts),
    advice: silence(facts).length === 0 ? [] : ADVICE_OF_CAUSE.worker_lost(facts).slice(0, 1),
  }),
  stopping: (facts) => ({
    state: `was asked to stop${on(facts)}, and its end is not reported yet`,
    reasons: [...causeOf(facts), ...silence(facts)],
    advice: [
      'wait: its processes get the time of SANDYARD_STOP_GRACE_MS before they are killed',
      ...(silence(facts).length === 0
        ? []
        : ['if its worker stays silent, it fails once the lease of the worker is over']),
    ],
  }),
  stopped: (facts) => ({
    state: 'is stopped',
    reasons: [...causeOf(facts), ...endOf(facts)],
    advice: adviceOfEnd(facts),
  }),
  failed: (facts) => ({ state: 'failed', reasons: [...endOf(facts), ...causeOf(facts)], advice: adviceOfEnd(facts) }),
}

function explainPlacedStart(facts: StatusFacts): StatusExplanation {
  return {
    state: `is being started${on(facts)}`,
    reasons: [
      'the worker pulls the image, makes the disk and starts the workload; a large image takes minutes',
      ...silence(facts),
    ],
    advice:
      silence(facts).length === 0
        ? [
            `read what the worker says, such as why no node takes its Pod: sandyard logs ${facts.name} --system`,
            'wait, or read the log of the worker for the image and the step',
          ]
        : [
            'if its worker stays silent, the start fails once the lease of the worker is over',
            ...ADVICE_OF_CAUSE.worker_lost(facts).slice(0, 1),
          ],
  }
}

const EXPLANATIONS_OF_WAIT: Readonly<Record<StatusReason, (facts: StatusFacts) => StatusExplanation>> = {
  scheduling: (facts) => ({
    state: 'waits to be placed on a worker',
    reasons:
      facts.live_servers > 0
        ? ['its start was admitted, and the next pass of placement, within a second, chooses a worker']
        : ['no server runs on this database, so nothing is placed'],
    advice: facts.live_servers > 0 ? ['wait a second'] : ['start the server: sandyard up, or sandyard serve'],
  }),
  insufficient_capacity: (facts) => ({
    state: 'waits for a worker with enough capacity',
    reasons: [...queue(facts), ...(facts.waiting?.missing.map(describeMissing) ?? []), ...serverless(facts)],
    advice: adviceOfWait(facts),
  }),
}

function queue({ waiting }: StatusFacts): readonly string[] {
  if (waiting === null) return []
  const place = `it is number ${String(waiting.position)} of ${String(waiting.waiting)} that wait`
  return waiting.missing.length > 0 ? [place] : [place, 'a worker has the capacity by now, and placement will use it']
}

function serverless({ live_servers }: StatusFacts): readonly string[] {
  return live_servers > 0 ? [] : ['no server runs on this database, so nothing is placed']
}

const UNITS: Readonly<Record<string, string>> = { vcpus: 'vCPUs', memory_mib: 'MiB of memory', disk_mib: 'MiB of disk' }

/** Describes a need of a waiting run that a worker, or all workers, can't satisfy now. */
export function describeMissing({ kind, name, requested, largest_free, accepted }: MissingRequirement): string {
  return MISSING[kind]({ unit: UNITS[name] ?? name, requested: String(requested), free: largest_free ?? 0, accepted })
}

type MissingWords = {
  readonly unit: string
  readonly requested: string
  readonly free: number
  readonly accepted: string | null
}

const MISSING: Readonly<Record<MissingRequirement['kind'], (words: MissingWords) => string>> = {
  resource: ({ unit, requested, free }) => `it needs ${requested} ${unit}, and ${String(free)} are free`,
  ability: ({ requested }) => `it needs the ability '${requested}'`,
  volume: ({ requested, accepted }) => `it needs ${requested}: ${accepted ?? 'a worker that has them'}`,
  disk: ({ requested, accepted }) => `it needs ${requested}: ${accepted ?? 'the worker that stores it'}`,
  port: ({ unit, requested, accepted }) =>
    `it needs ${unit} at ${requested}: ${accepted ?? 'a worker where it is free'}`,
  worker: ({ accepted }) => `it needs ${accepted ?? 'a worker'}`,
}

function adviceOfWait(facts: StatusFacts): readonly string[] {
  const kinds = new Set(facts.waiting?.missing.map(({ kind }) => kind) ?? [])
  const advice = [...kinds].flatMap((kind) => ADVICE_OF_MISSING[kind](facts))
  const server = facts.live_servers > 0 ? [] : ['start the server: sandyard up, or sandyard serve']
  return [...new Set([...server, ...(advice.length === 0 ? ['wait a second'] : advice)])]
}

const ADVICE_OF_MISSING: Readonly<Record<MissingRequirement['kind'], (names: AdviceNames) => readonly string[]>> = {
  resource: ({ name }) => [
    'stop other sandboxes: sandyard ps shows where they run',
    'add a worker: sandyard worker token',
    `or create it smaller: msb rm ${name}, then msb create with less`,
  ],
  ability: () => [
    'add a worker with this ability, or create it without the field that asks for it: see docs/drivers.md',
  ],
  volume: ({ worker }) => bringBack(worker, 'its volumes'),
  disk: ({ worker }) => bringBack(worker, 'its disk'),
  port: () => [
    'stop the sandbox that publishes the port: sandyard ps shows what runs',
    'or create it with another port in network.ports, or with host_port 0',
  ],
  worker: () => ['see the state of the workers: sandyard worker list', 'add a worker: sandyard worker token'],
}

function bringBack(worker: string | null, what: string): readonly string[] {
  const name = worker === null ? 'the worker' : `the worker '${worker}'`
  return [`start ${name}, which stores ${what}, or end its drain: sandyard worker list shows its state`]
}

function on({ worker }: StatusFacts): string {
  return worker === null ? '' : ` on the worker '${worker}'`
}

function silence({ worker, is_worker_live }: StatusFacts): readonly string[] {
  return is_worker_live === false && worker !== null ? [`the worker '${worker}' doesn't report`] : []
}

function causeOf({ cause, outcome }: StatusFacts): readonly string[] {
  // The outcome says more. Events of earlier releases have the end of the workload here, which never began.
  const isStartFailure = outcome?.kind === 'start_failed' && (cause === 'worker_report' || cause === 'workload_ended')
  return cause === null || isStartFailure ? [] : [lowerFirst(CAUSES[cause].replace(/\.$/, ''))]
}

function lowerFirst(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1)
}

function endOf({ last_failure_message, status }: StatusFacts): readonly string[] {
  return status === 'failed' && last_failure_message !== null ? [last_failure_message] : []
}

function adviceOfEnd(facts: StatusFacts): readonly string[] {
  const { outcome, cause } = facts
  const ofStart = outcome?.kind === 'start_failed' ? ADVICE_OF_START_FAILURE[outcome.reason](facts) : []
  const ofOutcome = outcome === null || facts.status === 'stopped' ? [] : ADVICE_OF_OUTCOME[outcome.kind](facts)
  const ofCause = cause === null ? ADVICE_OF_CAUSE.requested(facts) : ADVICE_OF_CAUSE[cause](facts)
  return [
    ...new Set([...ofStart, ...ofOutcome, ...(ofStart.length === 0 ? ofCause : ADVICE_OF_CAUSE.requested(facts))]),
  ]
}
