import type { OrgId, SandboxId } from '../../src/domain/ids.ts'
import { asId } from '../../src/domain/ids.ts'
import type { TestControl } from './control.ts'

/** A run that a test inserts. `ended_at` null means that it is open. */
export type LedgerRun = {
  readonly sandbox_id: SandboxId
  readonly vcpus: number
  readonly memory_mib: number
  readonly disk_mib: number
  readonly started_at: Date | null
  readonly ended_at: Date | null
}

/** Inserts sandboxes of an organization without runs. */
export async function insertSandboxes(
  { deps }: Pick<TestControl, 'deps'>,
  org_id: OrgId,
  names: readonly string[],
): Promise<readonly SandboxId[]> {
  const rows = names.map((name) => ({ id: asId<SandboxId>(deps.uuids.next()), name }))
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO sandboxes (id, org_id, name, slug, status, ephemeral, created_at, vcpus, memory_mib, abilities,
               spec, spec_projection, registry)
             SELECT id, $1, name, 'slug-of-' || left(id::text, 8) || right(id::text, 12), 'created', false, now(), 1, 512, '{}',
               '{}', '{}', '{}'
             FROM json_to_recordset($2) AS r(id uuid, name text)`,
      values: [org_id, JSON.stringify(rows)],
    }),
  )
  return rows.map(({ id }) => id)
}

/** Inserts runs directly, without transitions. */
export async function insertRuns(
  { deps }: Pick<TestControl, 'deps'>,
  org_id: OrgId,
  runs: readonly LedgerRun[],
): Promise<void> {
  const rows = runs.map((run) => ({ id: deps.uuids.next(), ...run }))
  await deps.db.asSystem((q) =>
    q.query({
      text: `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, disk_mib, opened_at, started_at, ended_at)
             SELECT id, $1, sandbox_id, vcpus, memory_mib, disk_mib, coalesce(started_at, now()), started_at, ended_at
             FROM json_to_recordset($2) AS r(id uuid, sandbox_id uuid, vcpus integer, memory_mib integer,
               disk_mib integer, started_at timestamptz, ended_at timestamptz)`,
      values: [org_id, JSON.stringify(rows)],
    }),
  )
}

/** Deletes every run, rollup and accrual, and forgets that any was pruned. */
export async function clearLedger({ asOwner }: Pick<TestControl, 'asOwner'>): Promise<void> {
  for (const table of [
    'runs',
    'usage_days',
    'usage_org_days',
    'storage_accruals',
    'storage_org_days',
    'retention_horizons',
  ])
    await asOwner(`DELETE FROM ${table}`)
}
