/** The second half of a sync: the answer to the worker. */
import { hash } from 'node:crypto'
import type {
  DesiredRun,
  OrgLimits,
  RunVolume,
  StreamTicket,
  SyncRequest,
} from '../../contract/workers/worker-protocol.ts'
import { asId, type RunId, type WorkerId } from '../../domain/ids.ts'
import { usesVolumes } from '../../domain/spec/spec-volumes.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as runs from '../../store/sandboxes/runs.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { ControlSettings } from '../deps.ts'
import type { AuthorityDeps } from '../orgs/intercept-authorities.ts'
import type { CredentialLookups } from '../orgs/registry-auth.ts'
import { parseSpec } from '../sandboxes/parse-spec.ts'
import { credentialsOfRun, mayNeedSpec } from './run-credentials.ts'
import type { RecordedReport } from './record-report.ts'
import type { UnrenderedRun, UnrenderedAnswer } from './render-answer.ts'
import type { SentRuns } from './sent-runs.ts'
import { answerVolumes, NO_VOLUMES_VERSION, volumesOfRuns } from './sync-volumes.ts'

/** The tickets of streams that wait for a worker to dial in. */
export type Tickets = {
  openTickets(workerId: string): readonly StreamTicket[]
}

/** An answer without its generation, which is added last. */
export type AnswerBody = Omit<UnrenderedAnswer, 'generation'>

/** The versions and tickets that a worker says it already has. */
export type KnownByWorker = Pick<SyncRequest, 'known_desired_version' | 'known_volumes_version' | 'dialled_tickets'>

/**
 * How many bytes of specifications and secrets an answer to a worker has at least before it leaves further runs to a later one. A run has up
 * to 4 MiB, and V8 makes no text above 512 MiB: a worker with 128 such runs would never get all of them in one.
 */
const ANSWER_BYTES = 1024 * 1024

export type AnswerDeps = AuthorityDeps & {
  readonly settings: Pick<ControlSettings, 'defaultRegistry' | 'stopGraceMs' | 'networkDeny'>
  readonly tickets: Tickets
  readonly sentRuns: SentRuns
  /** Instead of `ANSWER_BYTES`. */
  readonly answerBytes?: number
}

/** An answer without news, except open tickets. */
export function emptyAnswer(tickets: Tickets, worker: WorkerId, known: KnownByWorker): AnswerBody {
  return {
    desired_version: known.known_desired_version ?? '',
    desired_runs: null,
    discard_sandboxes: [],
    streams: tickets.openTickets(worker),
    volumes_version: known.known_volumes_version ?? '',
    volumes: null,
    discard_volumes: [],
  }
}

/**
 * The answer that follows from a recorded report without another query. Null when a query is needed, because the report
 * moved a sandbox or there may be news for the worker.
 */
export function answerFromReport(tickets: Tickets, report: SyncRequest, recorded: RecordedReport): AnswerBody | null {
  const { open, has_more, hasMoved } = recorded
  if (open !== null) {
    if (hasMoved || has_more || desiredVersionOf(open) !== report.known_desired_version) return null
    if (report.known_volumes_version !== NO_VOLUMES_VERSION) return null
  }
  return emptyAnswer(tickets, report.worker_id, report)
}

/**
 * The answer from the current state of the database. It leaves out the parts whose version the worker knows, and the runs
 * that didn't change since. With `expectsRuns`, it reads what changed at once, which saves a round trip if anything did.
 */
export async function makeAnswer(
  deps: AnswerDeps,
  report: SyncRequest,
  { expectsRuns = false }: { readonly expectsRuns?: boolean } = {},
): Promise<AnswerBody> {
  const { worker_id, stored_sandboxes, known_desired_version } = report
  const known = deps.sentRuns.of(worker_id, known_desired_version)
  const readRuns = (q: Queryable) => readAssignments(q, worker_id, known ?? {}, deps.answerBytes ?? ANSWER_BYTES)
  const [discard_sandboxes, volumes, read] = await deps.db.asSystem((q) =>
    Promise.all([
      stored_sandboxes.length === 0 ? [] : sandboxes.findDeleted(q, stored_sandboxes),
      answerVolumes(q, worker_id, report),
      expectsRuns ? readRuns(q) : readVersion(q, worker_id),
    ]),
  )
  const rest = { discard_sandboxes, streams: deps.tickets.openTickets(worker_id), ...volumes }
  if (read.version === known_desired_version) return { desired_version: read.version, desired_runs: null, ...rest }
  // Runs that are read only now may have a newer version.
  const { version, assignments } = read.assignments !== null ? read : await deps.db.asSystem(readRuns)
  const changed = await Promise.all(assignments.filter(isChanged).map(parseAssignment))
  const mountsVolumes = changed.some(({ spec }) => spec !== null && usesVolumes(spec))
  const mounted = mountsVolumes
    ? await deps.db.asSystem((q) => volumesOfRuns(q, worker_id))
    : new Map<RunId, readonly RunVolume[]>()
  const lookups: CredentialLookups = new Map()
  const desired_runs = await Promise.all(
    changed.map((run) => desiredRunOf(deps, run, { volumes: mounted.get(run.run_id) ?? [], lookups })),
  )
  const later_runs = assignments.filter(isLater).map(({ run_id }) => run_id)
  const sent = versionsSent(known ?? {}, assignments)
  const desired_version = later_runs.length === 0 ? version : partialVersionOf(version, later_runs, sent)
  deps.sentRuns.note(worker_id, { desired_version, runs: sent })
  return {
    desired_version,
    desired_runs,
    ...(later_runs.length === 0 ? {} : { later_runs }),
    ...(known === null ? {} : changesSince(known, assignments, sent)),
    ...rest,
  }
}

async function readVersion(q: Queryable, worker: WorkerId) {
  return { version: desiredVersionOf(await runs.ofWorker(q, worker)), assignments: null }
}

async function readAssignments(...of: Parameters<typeof runs.assignmentsOf>) {
  const assignments = await runs.assignmentsOf(...of)
  return { version: desiredVersionOf(assignments), assignments }
}

/** `spec` is null if it need not be looked at. */
type ParsedAssignment = runs.RunAssignment & { readonly spec: SandboxSpec | null }

/** Parses the stored specification if it must be looked at. */
async function parseAssignment(run: runs.RunAssignment): Promise<ParsedAssignment> {
  if (!mayNeedSpec(run)) return { ...run, spec: null }
  return { ...run, spec: await parseSpec(run.spec_json) }
}

function isChanged(run: runs.RunAssignment | runs.KnownAssignment): run is runs.RunAssignment {
  return run.spec_json !== null
}

function isLater(run: runs.RunAssignment | runs.KnownAssignment): boolean {
  return run.spec_json === null && run.is_later
}

/** The versions that the worker has once it has applied the answer. */
function versionsSent(
  known: runs.KnownRuns,
  assignments: readonly (runs.RunAssignment | runs.KnownAssignment)[],
): runs.KnownRuns {
  return Object.fromEntries(
    assignments.flatMap((run) => {
      const version = isLater(run) ? known[run.run_id] : run.version
      return version === undefined ? [] : [[run.run_id, version] as const]
    }),
  )
}

/** The version of an answer without some runs. It differs from that of all runs, so the worker's next report gets an answer at once. */
function partialVersionOf(version: string, later: readonly RunId[], sent: runs.KnownRuns): string {
  return hash('sha256', `${version}\n${later.map((run) => `${run} ${sent[run] ?? ''}\n`).join('')}`, 'base64url')
}

/** What an answer says of runs that the worker knows, apart from those that it repeats. */
function changesSince(
  known: runs.KnownRuns,
  assignments: readonly (runs.RunAssignment | runs.KnownAssignment)[],
  sent: runs.KnownRuns,
): Pick<AnswerBody, 'changes_only'> {
  const stopping = assignments.filter((run) => !isChanged(run) && known[run.run_id] !== sent[run.run_id])
  const stopping_runs = stopping.map(({ run_id }) => run_id)
  return { changes_only: { stopping_runs, gone_runs: keysOf(known).filter((run) => !(run in sent)) } }
}

function keysOf(known: runs.KnownRuns): readonly RunId[] {
  return Object.keys(known).map((run) => asId<RunId>(run))
}

/** Whether an answer contains anything that is new to the worker: runs, volumes, sandboxes to discard, or tickets. */
export function hasNews(answer: AnswerBody, report: Pick<KnownByWorker, 'dialled_tickets'>): boolean {
  const isDialled = new Set(report.dialled_tickets)
  return (
    answer.desired_runs !== null ||
    answer.volumes !== null ||
    answer.discard_sandboxes.length > 0 ||
    answer.streams.some(({ ticket }) => !isDialled.has(ticket))
  )
}

function desiredVersionOf(
  open: readonly Pick<runs.OpenRunOfWorker, 'run_id' | 'status' | 'secrets_version'>[],
): string {
  const lines = open.map((run) => `${run.run_id} ${desiredStatusOf(run)} ${String(run.secrets_version)}\n`)
  return hash('sha256', lines.join(''), 'base64url') // half the time of an update for each line
}

function desiredStatusOf(run: { readonly status: runs.OpenRunOfWorker['status'] }): DesiredRun['desired_status'] {
  return run.status === 'stopping' ? 'stopped' : 'running'
}

async function desiredRunOf(
  deps: AnswerDeps,
  run: ParsedAssignment,
  { volumes, lookups }: { readonly volumes: readonly RunVolume[]; readonly lookups: CredentialLookups },
): Promise<UnrenderedRun> {
  const { spec } = run
  const credentials = spec === null ? { registry_auth: null } : await credentialsOfRun(deps, { ...run, spec }, lookups)
  return {
    run_id: run.run_id,
    sandbox_id: run.sandbox_id,
    org_id: run.org_id,
    name: run.name,
    slug: run.slug,
    org: run.org,
    desired_status: desiredStatusOf(run),
    grace_ms: deps.settings.stopGraceMs,
    spec_json: run.spec_json,
    default_disk_max_mib: run.default_disk_max_mib,
    org_limits: orgLimitsOf(run),
    network_ranges: { deny: deps.settings.networkDeny(), allow: run.network_allow },
    volumes,
    ...credentials,
  }
}

function orgLimitsOf({
  max_running,
  max_vcpus_per_sandbox,
  max_memory_mib_per_sandbox,
}: runs.RunAssignment): OrgLimits {
  return { max_running, max_vcpus_per_sandbox, max_memory_mib_per_sandbox }
}
