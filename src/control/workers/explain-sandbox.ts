import type { SandboxId } from '../../domain/ids.ts'
import { CAUSES, type CauseCode } from '../../domain/sandboxes/lifecycle.ts'
import { describeMissing, explainStatus, type StatusExplanation } from '../../domain/workers/explain-status.ts'
import { explainPlacement } from '../../domain/workers/explain-placement.ts'
import { WAITING_COUNTED_MAX } from '../../domain/requests/request-bounds.ts'
import { mayServeOrg } from '../../domain/workers/worker-bounds.ts'
import * as waitingRuns from '../../store/workers/waiting-runs.ts'
import type { BaseDeps } from '../deps.ts'
import { listEvents, type EventRow } from '../events/read-events.ts'
import { listWorkers, type FleetWorker } from './fleet.ts'
import {
  awayFromHome,
  makeFleetReader,
  placementRequestOf,
  type PlacementSettings,
} from '../sandboxes/placement/read-fleet.ts'
import { readLiveReplicas } from './replicas.ts'
import { inspectSandbox, type RunDetails, type SandboxDetails } from '../sandboxes/inspect-sandbox.ts'

/** Why a worker doesn't get a waiting run. Empty `lacks`: it could have it now. */
export type WorkerVerdict = { readonly worker: string; readonly lacks: readonly string[] }

/** Where a sandbox stands, what was tried, and what would help. */
export type SandboxExplanation = StatusExplanation & {
  readonly sandbox: Pick<SandboxDetails, 'id' | 'org' | 'name' | 'slug' | 'status' | 'status_reason' | 'isolation'> & {
    readonly image: string
  }
  /** When the state began, and the event that began it. Null: the events of the sandbox are deleted. */
  readonly since: EventRow | null
  /** The latest runs, newest first. */
  readonly runs: readonly RunDetails[]
  /** The latest events, newest first. */
  readonly events: readonly EventRow[]
  /** For a sandbox that waits: the workers, and what each lacks. At most `WORKERS_SHOWN`. */
  readonly workers: readonly WorkerVerdict[]
}

type ExplainDeps = Pick<BaseDeps, 'db' | 'clock'> & { readonly settings: PlacementSettings }

const EVENTS_READ = 20
const WORKERS_SHOWN = 100

/** Explains the state of a sandbox of any organization. Throws `sandbox_not_found`. */
export async function explainSandbox(deps: ExplainDeps, id: SandboxId): Promise<SandboxExplanation> {
  const details = await inspectSandbox(deps, id)
  const filter = { event_type: null, sandbox_id: id, since: null, until: null, cursor: null, limit: EVENTS_READ }
  const { items: events } = await listEvents(deps, details, filter)
  const fleet = await Array.fromAsync(listWorkers(deps))
  const waiting = await explainWait(deps, id, fleet)
  const [run] = details.runs
  const since = events.find(({ event_type }) => STATUS_EVENTS.has(event_type)) ?? null
  const worker = run?.worker ?? details.home_worker
  const explanation = explainStatus({
    ...details,
    is_deleted: details.deleted_at !== null,
    is_org_suspended: details.org_suspended_at !== null,
    worker,
    is_worker_live: worker === null ? null : fleet.some(({ name, state }) => name === worker && isReporting(state)),
    live_servers: (await readLiveReplicas(deps)).length,
    cause: run?.stop_cause ?? causeOf(since),
    outcome: run?.outcome ?? null,
    waiting,
  })
  const { org, name, slug, status, status_reason, isolation } = details
  return {
    sandbox: { id, org, name, slug, status, status_reason, isolation, image: details.spec.image },
    ...explanation,
    since,
    workers: waiting?.workers ?? [],
    runs: details.runs,
    events,
  }
}

/** The events that change the status of a sandbox. */
const STATUS_EVENTS: ReadonlySet<string> = new Set([
  'sandbox_created', 'sandbox_starting', 'sandbox_waiting', 'sandbox_placed', 'sandbox_running', 'sandbox_stopping',
  'sandbox_stopped', 'sandbox_failed', 'sandbox_deleted',
]) // prettier-ignore

function isReporting(state: FleetWorker['state']): boolean {
  return state === 'live' || state === 'draining'
}

function causeOf(event: EventRow | null): CauseCode | null {
  const payload = event?.payload
  if (typeof payload !== 'object' || payload === null || !('cause' in payload)) return null
  return Object.keys(CAUSES).find((code): code is CauseCode => code === payload.cause) ?? null
}

async function explainWait({ db, clock, settings }: ExplainDeps, id: SandboxId, fleet: readonly FleetWorker[]) {
  const run = await db.asSystem((q) => waitingRuns.findWaiting(q, id, WAITING_COUNTED_MAX))
  if (run === null) return null
  const request = placementRequestOf(run.may_fetch ? awayFromHome(run) : run, settings)
  const free = await db.asSystem((q) => makeFleetReader()(q, clock.now()))
  const serving = free.filter((worker) => mayServeOrg(worker, run.org_id))
  const verdicts = fleet
    .filter(({ state }) => state !== 'removed')
    .map(({ id: workerId, name, state }): WorkerVerdict => {
      const worker = serving.find((one) => one.id === workerId)
      if (worker !== undefined)
        return { worker: name, lacks: explainPlacement(request, [worker]).missing.map(describeMissing) }
      return { worker: name, lacks: [WHY_NOT[state]] }
    })
    .toSorted((a, b) => a.lacks.length - b.lacks.length)
  const { missing } = explainPlacement(request, serving)
  return { position: run.position, waiting: run.waiting, missing, workers: verdicts.slice(0, WORKERS_SHOWN) }
}

/** Why a worker gets no run of the organization, whatever its capacity. */
const WHY_NOT: Readonly<Record<FleetWorker['state'], string>> = {
  joined: 'it has not reported since it joined',
  live: 'its join token excludes the organization',
  silent: "it doesn't report",
  draining: 'it is drained',
  removed: 'it is removed',
}
