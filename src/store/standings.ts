/**
 * Where sandboxes stand: status and open run, read under a lock and written together. Only `control/transition.ts`
 * may import this file: it is the one writer of sandbox status.
 */
import type { OrgId, RunId, SandboxId, WorkerId } from '../domain/ids.ts'
import type { CauseCode, SandboxStatus, StatusReason } from '../domain/lifecycle.ts'
import type { Queryable } from './database.ts'

/** A sandbox and its open run, locked until the transaction ends. */
export type StandingRow = {
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly ephemeral: boolean
  readonly is_hidden: boolean
  readonly vcpus: number
  readonly memory_mib: number
  readonly max_duration_secs: number | null
  readonly run_id: RunId | null
  readonly worker_id: WorkerId | null
  readonly run_started_at: Date | null
}

/** Locks a sandbox's row; null when there is none. */
export async function lock(tx: Queryable, id: SandboxId): Promise<StandingRow | null> {
  const { rows } = await tx.query<StandingRow>({
    name: 'standings.lock',
    text: `SELECT s.org_id, s.name, s.slug, s.status, s.status_reason, s.ephemeral, s.visible_until IS NOT NULL AS is_hidden, s.vcpus,
             s.memory_mib, (s.spec #>> '{lifecycle,max_duration_secs}')::bigint AS max_duration_secs,
             r.id AS run_id, r.worker_id, r.started_at AS run_started_at
           FROM sandboxes s LEFT JOIN runs r ON r.sandbox_id = s.id AND r.ended_at IS NULL
           WHERE s.id = $1 FOR UPDATE OF s`,
    values: [id],
  })
  return rows[0] ?? null
}

/** What a transition writes to the sandbox; undefined leaves a column as it is. */
export type SandboxChange = {
  readonly status: SandboxStatus
  readonly status_reason: StatusReason | null
  readonly last_failure_message?: string | null
  readonly started_at?: Date
  readonly stopped_at?: Date | null
  readonly home_worker_id?: WorkerId
  /** True forgets the sealed registry credential: it was for one create-and-start only. */
  readonly forget_registry_secret?: boolean
}

/** Writes a sandbox's status and what goes with it. */
export async function write(tx: Queryable, id: SandboxId, change: SandboxChange): Promise<void> {
  const set = ['status = $2', 'status_reason = $3']
  const values: unknown[] = [id, change.status, change.status_reason]
  const add = (column: string, value: unknown): void => {
    if (value === undefined) return
    values.push(value)
    set.push(`${column} = $${String(values.length)}`)
  }
  add('last_failure_message', change.last_failure_message)
  add('started_at', change.started_at)
  add('stopped_at', change.stopped_at)
  add('home_worker_id', change.home_worker_id)
  if (change.forget_registry_secret === true) set.push('registry_sealed = NULL')
  await tx.query({ text: `UPDATE sandboxes SET ${set.join(', ')} WHERE id = $1`, values })
}

export type NewRun = {
  readonly id: RunId
  readonly org_id: OrgId
  readonly sandbox_id: SandboxId
  readonly vcpus: number
  readonly memory_mib: number
  readonly opened_at: Date
}

/** Opens a run; false when the organization is suspended. A second open run of a sandbox violates `runs_one_open`. */
export async function openRun(tx: Queryable, run: NewRun): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'standings.openRun',
    text: `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, opened_at)
           SELECT $1, $2, $3, $4, $5, $6 FROM orgs WHERE id = $2 AND suspended_at IS NULL`,
    values: [run.id, run.org_id, run.sandbox_id, run.vcpus, run.memory_mib, run.opened_at],
  })
  return rowCount === 1
}

export type RunChange = {
  readonly worker_id?: WorkerId
  readonly placed_at?: Date
  readonly started_at?: Date
  readonly deadline_at?: Date
  readonly stop_requested_at?: Date
  readonly stop_cause?: CauseCode
  readonly ended_at?: Date
  readonly outcome?: object
}

/** Writes what a transition says of an open run. */
export async function writeRun(tx: Queryable, id: RunId, change: RunChange): Promise<void> {
  const entries = Object.entries(change).filter(([, value]) => value !== undefined)
  if (entries.length === 0) return
  const set = entries.map(([column], index) => `${column} = $${String(index + 2)}`)
  const values = entries.map(([column, value]) => (column === 'outcome' ? JSON.stringify(value) : value))
  await tx.query({ text: `UPDATE runs SET ${set.join(', ')} WHERE id = $1`, values: [id, ...values] })
}
