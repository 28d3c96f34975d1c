import type { Caller, OrgActor } from '../../domain/orgs/caller.ts'
import { asId, type SnapshotId, type SnapshotOperationId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Snapshot } from '../../domain/snapshots/snapshot.ts'
import { isUuid } from '../../lib/uuid.ts'
import * as snapshots from '../../store/snapshots/snapshots.ts'
import type { BaseDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'

type ReadDeps = Pick<BaseDeps, 'db'>

/** How a request names a snapshot. */
export type SnapshotRef = { readonly id: SnapshotId } | { readonly name: string }

/** A page of the organization's complete snapshots, from the newest to the oldest. */
export async function listSnapshots(
  { db }: ReadDeps,
  { org_id }: Pick<OrgActor, 'org_id'>,
  input: PageInput,
): Promise<Page<Snapshot>> {
  return await readPage('snapshots', input, (after, count) =>
    db.asOrg(org_id, (q) => snapshots.page(q, org_id, { after, count })),
  )
}

/** A complete snapshot. Throws `snapshot_not_found`, also while the snapshot is being made. */
export async function getSnapshot(
  { db }: ReadDeps,
  { org_id }: Pick<OrgActor, 'org_id'>,
  ref: SnapshotRef,
): Promise<Snapshot> {
  const found = await db.asOrg(org_id, (q) =>
    'id' in ref ? snapshots.find(q, org_id, ref.id) : snapshots.findByName(q, org_id, ref.name),
  )
  if (found === null) throw new Problem('snapshot_not_found')
  return found
}

/** The complete snapshot with this id, or else with this name. Throws `snapshot_not_found`. */
export async function findSnapshotToRestore(deps: ReadDeps, caller: Caller, idOrName: string): Promise<Snapshot> {
  const { org_id } = caller
  const byId = isUuid(idOrName)
    ? await deps.db.asOrg(org_id, (q) => snapshots.find(q, org_id, asId<SnapshotId>(idOrName.toLowerCase())))
    : null
  return byId ?? (await getSnapshot(deps, caller, { name: idOrName }))
}

/** The snapshot that an operation makes, whatever became of it. Throws `snapshot_operation_not_found`. */
export async function getSnapshotOperation(
  { db }: ReadDeps,
  { org_id }: Caller,
  id: SnapshotOperationId,
): Promise<Snapshot> {
  const found = await db.asOrg(org_id, (q) => snapshots.findByOperation(q, org_id, id))
  if (found === null || found.name === null) throw new Problem('snapshot_operation_not_found')
  return found
}
