/** Operators' actions on workers. They are logged. Organizations see only the effects on their sandboxes and snapshots. */
import { asId, type WorkerId } from '../../domain/ids.ts'
import { formatActorForLog, OPERATOR_ACTOR, type Actor } from '../../domain/orgs/caller.ts'
import { isolationOf, type IsolationLevel } from '../../domain/isolation.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { LOCAL_WORKER_NAME, type WorkerState } from '../../domain/workers/worker.ts'
import { Problem } from '../../domain/problem.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as snapshotWork from '../../store/snapshots/snapshot-work.ts'
import * as fleet from '../../store/workers/fleet.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'

type FleetDeps = Pick<BaseDeps, 'db' | 'clock' | 'log'>

/** A worker as operators see it. */
export type FleetWorker = Omit<fleet.ListedWorker, 'lease_expires_at' | 'abilities'> & {
  /** The isolation of the sandboxes that it starts. Null: none, or it has not reported. */
  readonly isolation: IsolationLevel | null
  readonly state: WorkerState | 'removed'
  readonly last_report_at: Date | null
}

/** How many workers one query reads. */
const LIST_PAGE = 500

/** Every worker that ever joined, in the order of joining. */
export async function* listWorkers(deps: Pick<FleetDeps, 'db' | 'clock'>): AsyncGenerator<FleetWorker> {
  for (let after: WorkerId | null = null; ;) {
    const last: WorkerId | null = after
    const page: readonly fleet.ListedWorker[] = await deps.db.asSystem((q) =>
      fleet.list(q, last, LIST_PAGE, { isRemovedToo: true }),
    )
    const now = deps.clock.now()
    for (const row of page) yield describeWorker(row, now)
    after = page.at(-1)?.id ?? null
    if (after === null || page.length < LIST_PAGE) return
  }
}

/** A page of the workers that were not removed, in the order of joining. Throws `invalid_request` for a bad cursor. */
export async function listLiveWorkers(
  deps: Pick<FleetDeps, 'db' | 'clock'>,
  input: PageInput,
): Promise<Page<FleetWorker>> {
  const { items, nextCursor } = await readPage('workers', input, (after, count) =>
    deps.db.asSystem((q) =>
      fleet.list(q, after === null ? null : asId<WorkerId>(after), count, { isRemovedToo: false }),
    ),
  )
  const now = deps.clock.now()
  return { items: items.map((row) => describeWorker(row, now)), nextCursor }
}

/** The worker that currently has this name. Throws `not_found`. */
export async function readWorker(deps: Pick<FleetDeps, 'db' | 'clock'>, name: string): Promise<FleetWorker> {
  for await (const worker of listWorkers(deps)) if (worker.name === name && worker.removed_at === null) return worker
  throw workerNotFound(name)
}

function describeWorker({ lease_expires_at, abilities, ...listed }: fleet.ListedWorker, now: Date): FleetWorker {
  const row = { ...listed, isolation: isolationOf(abilities ?? []) }
  const last_report_at = lease_expires_at === null ? null : new Date(lease_expires_at.getTime() - WORKER_LEASE_MS)
  const isSilent = lease_expires_at !== null && lease_expires_at <= now
  if (row.removed_at !== null) return { ...row, state: 'removed', last_report_at }
  if (isSilent) return { ...row, state: 'silent', last_report_at }
  if (row.draining_since !== null) return { ...row, state: 'draining', last_report_at }
  return { ...row, state: lease_expires_at === null ? 'joined' : 'live', last_report_at }
}

/**
 * Drains a worker, which then gets no new runs. After `withinMs`, at the deadline that it returns, its runs are asked to stop. Null:
 * they continue to their end. A repeated call sets the new deadline. Throws `not_found`.
 */
export async function drainWorker(
  deps: FleetDeps,
  name: string,
  withinMs: number | null,
  by: Actor = OPERATOR_ACTOR,
): Promise<Date | null> {
  const since = deps.clock.now()
  const deadline_at = withinMs === null ? null : new Date(since.getTime() + withinMs)
  await withWorker(deps, name, (tx, { id }) => fleet.setDrain(tx, id, { since, deadline_at }))
  deps.log.info({ worker: name, deadline_at, actor: formatActorForLog(by) }, 'the worker is draining')
  return deadline_at
}

/** Ends the drain of a worker, which then gets runs again. May be repeated. Throws `not_found`. */
export async function resumeWorker(deps: FleetDeps, name: string, by: Actor = OPERATOR_ACTOR): Promise<void> {
  await withWorker(deps, name, (tx, { id }) => fleet.setDrain(tx, id, null))
  deps.log.info({ worker: name, actor: formatActorForLog(by) }, 'the worker is no longer draining')
}

/** The runs, sandboxes and volumes on a worker when it was removed. */
export type Removal = fleet.Holdings & { readonly worker_id: WorkerId }

/** The maximum number of sandboxes, and of volumes, that a `Removal` or a refusal names. */
const NAMES_SHOWN = 10

/**
 * Removes a worker. Its credential is void at once and its name is free. Throws `worker_in_use` while the worker has
 * runs, disks, volumes or snapshots, unless `how` is `force`. With `force`, its runs are declared lost when its lease is over.
 * Sandboxes and volumes that were stored on it start empty on another worker. Its snapshots are gone, with an event
 * each. Throws `not_found`.
 */
export async function removeWorker(
  deps: FleetDeps & Pick<WriteDeps, 'uuids'>,
  name: string,
  how: 'unused' | 'force',
): Promise<Removal> {
  const removal = await withWorker(deps, name, async (tx, { id, lease_expires_at }) => {
    const now = deps.clock.now()
    if (name === LOCAL_WORKER_NAME && lease_expires_at !== null && lease_expires_at > now)
      throw new Problem('worker_in_use', {
        message: `'${name}' is the worker of a running \`sandyard up\`; stop that first`,
      })
    const held = await fleet.holdings(tx, id, NAMES_SHOWN)
    if (how === 'unused' && held.runs + held.sandboxes + held.volumes + held.snapshots > 0)
      throw new Problem('worker_in_use', {
        message: `the worker '${name}' is in use: ${formatHoldings(held)}. Delete these first, or add --force to lose them`,
      })
    await fleet.remove(tx, id, now)
    const gone = await snapshotWork.hideOfWorker(tx, id, now)
    for (const { id: snapshot_id, org_id, name } of gone) {
      const payload = { snapshot_id, name }
      await recordEvent(deps, tx, { org_id, actor: OPERATOR_ACTOR, event_type: 'snapshot_deleted', payload })
    }
    return { ...held, worker_id: id }
  })
  deps.log.info({ worker: name, ...removal }, 'a worker was removed')
  return removal
}

/** Describes what is stored on a worker, as a part of a sentence. */
export function formatHoldings(held: fleet.Holdings): string {
  const { runs, sandboxes, sandbox_names, volumes, volume_names, snapshots, snapshot_names } = held
  return [
    `${String(runs)} runs`,
    `the disks of ${String(sandboxes)} sandboxes${formatNames(sandbox_names, sandboxes)}`,
    `${String(volumes)} volumes${formatNames(volume_names, volumes)}`,
    `${String(snapshots)} snapshots${formatNames(snapshot_names, snapshots)}`,
  ].join(', ')
}

function formatNames(names: readonly string[], count: number): string {
  return names.length === 0 ? '' : ` (${names.join(', ')}${count > names.length ? ', …' : ''})`
}

function withWorker<T>(
  deps: FleetDeps,
  name: string,
  act: (tx: Queryable, worker: fleet.WorkerIdentity) => Promise<T>,
): Promise<T> {
  return deps.db.transaction('system', async (tx) => {
    const worker = await fleet.lockNamed(tx, name)
    if (worker === null) throw workerNotFound(name)
    return act(tx, worker)
  })
}

function workerNotFound(name: string): Problem {
  return new Problem('not_found', { message: `there is no worker '${name}'; \`sandyard worker list\` shows all` })
}
