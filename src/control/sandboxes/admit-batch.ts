import type { OrgId } from '../../domain/ids.ts'
import { splitByQuota, type QuotaRequest, type QuotaRefusal } from '../../domain/orgs/quota.ts'
import type { Clock } from '../../lib/clock.ts'
import * as admissions from '../../store/sandboxes/admissions.ts'
import type { Database, Queryable } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import * as quotas from '../../store/orgs/quotas.ts'

/** What became of a create. `conflictError`: another sandbox has its name or slug. `failed`: it could not be judged. */
export type AdmissionResult =
  | { readonly kind: 'admitted' }
  | { readonly kind: 'conflict' }
  | { readonly kind: 'refused'; readonly refusal: QuotaRefusal; readonly slug: string }
  | { readonly kind: 'failed'; readonly error: unknown }

const ADMITTED: AdmissionResult = { kind: 'admitted' }
const CONFLICT: AdmissionResult = { kind: 'conflict' }

type AdmitDeps = { readonly db: Database; readonly clock: Clock }
type Answers = Map<admissions.Admission, AdmissionResult>

/**
 * Commits sandboxes of one organization, as many as fit, in their order. Where nothing must be counted that is one
 * statement; what it leaves out is judged under the organization's lock. Rejects when the statement
 * fails; what fails after it fails those alone that are judged, for the others are committed.
 */
export async function admitBatch(
  deps: AdmitDeps,
  wanted: readonly admissions.Admission[],
): Promise<readonly AdmissionResult[]> {
  const [first] = wanted
  if (first === undefined) return []
  const { org_id } = first.sandbox
  const { rows } = await deps.db.commitStatement<admissions.AdmissionResult>(
    org_id,
    admissions.insertMany(org_id, wanted, { isQuotaChecked: false }),
  )
  const found = new Map(rows.map((row) => [row.id, row]))
  const unjudged = wanted.filter(({ sandbox }) => found.get(sandbox.id)?.skips_quota_check !== true)
  const judged: Answers = unjudged.length === 0 ? new Map() : await admitUnderLock(deps, org_id, unjudged)
  return wanted.map(
    (admission) =>
      judged.get(admission) ?? (found.get(admission.sandbox.id)?.is_admitted === true ? ADMITTED : CONFLICT),
  )
}

async function admitUnderLock(
  { db, clock }: AdmitDeps,
  org: OrgId,
  wanted: readonly admissions.Admission[],
): Promise<Answers> {
  try {
    return await db.transaction(org, (tx) => admitWithinQuota(tx, org, { wanted, now: clock.now() }))
  } catch (error) {
    return new Map(wanted.map((admission) => [admission, { kind: 'failed', error }]))
  }
}

/**
 * A create that meets a conflict takes no room, so that what was refused for want of it is judged again. Each round
 * settles one admission at least.
 */
async function admitWithinQuota(
  tx: Queryable,
  org: OrgId,
  { wanted, now }: { readonly wanted: readonly admissions.Admission[]; readonly now: Date },
): Promise<Answers> {
  await orgs.lock(tx, org)
  const answers: Answers = new Map()
  for (let left = wanted; left.length > 0;) {
    const standing = await quotas.readUsage(tx, org, { now, counts: 'decisive' })
    const { fitting, refused } = splitByQuota(standing, left, quotaRequestOf)
    const { rows } =
      fitting.length === 0
        ? { rows: [] }
        : await tx.query<admissions.AdmissionResult>(admissions.insertMany(org, fitting, { isQuotaChecked: true }))
    const admitted = new Set(rows.flatMap(({ id, is_admitted }) => (is_admitted ? [id] : [])))
    for (const admission of fitting) answers.set(admission, admitted.has(admission.sandbox.id) ? ADMITTED : CONFLICT)
    for (const [admission, refusal] of refused)
      answers.set(admission, { kind: 'refused', refusal, slug: standing.slug })
    left = admitted.size === fitting.length ? [] : [...refused.keys()]
  }
  return answers
}

function quotaRequestOf({ sandbox }: admissions.Admission): QuotaRequest {
  const { ephemeral, vcpus, memory_mib, disk_size_mib, max_duration_secs } = sandbox
  const starts = sandbox.run_id !== null
  return { creates: true, starts, ephemeral, vcpus, memory_mib, disk_size_mib, max_duration_secs }
}
