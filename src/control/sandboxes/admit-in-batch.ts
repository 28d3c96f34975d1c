import type { OrgId } from '../../domain/ids.ts'
import { splitByQuota, type QuotaRequest, type QuotaRefusal } from '../../domain/orgs/quota.ts'
import { makeBatch } from '../../lib/batch.ts'
import { makeFairSemaphore } from '../../lib/fair-semaphore.ts'
import { LARGE_TEXT } from '../../lib/next-turn.ts'
import * as admissions from '../../store/sandboxes/admissions.ts'
import type { Queryable } from '../../store/postgres/database.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import * as quotas from '../../store/orgs/quotas.ts'
import type { BaseDeps } from '../deps.ts'
import type { EventObserver } from './transition.ts'

/**
 * The result of a create. `conflict`: another sandbox has its name or slug, or it mounts a volume that is not active.
 * `failed`: the transaction that checks its quota failed.
 */
export type AdmissionResult =
  | { readonly kind: 'admitted' }
  | { readonly kind: 'conflict' }
  | { readonly kind: 'refused'; readonly refusal: QuotaRefusal; readonly slug: string }
  | { readonly kind: 'failed'; readonly error: unknown }

/** Commits a new sandbox, in one transaction with others of its organization that arrive at the same time. */
export type SandboxAdmitter = { readonly admitInBatch: (admission: admissions.Admission) => Promise<AdmissionResult> }

const ADMITTED: AdmissionResult = { kind: 'admitted' }
const CONFLICT: AdmissionResult = { kind: 'conflict' }

type AdmitDeps = Pick<BaseDeps, 'db' | 'clock'> & EventObserver
type Results = Map<admissions.Admission, AdmissionResult>

/**
 * Makes the function with which a process admits sandboxes in batches. More than two batches at a time, or batches of
 * more than 256 sandboxes, did not raise the rate of creates (2026-11). Of large specifications, one is written at a time,
 * organizations in turn: the bytes of a batch are copied and sent in one turn of the event loop.
 */
export function makeAdmitInBatch(deps: AdmitDeps): SandboxAdmitter['admitInBatch'] {
  const admit = makeBatch<admissions.Admission, AdmissionResult>({
    run: async (batch) => {
      const results = await admitBatch(deps, batch)
      deps.onEvents?.(batch.flatMap(({ events }, index) => (results[index]?.kind === 'admitted' ? events : [])))
      return results
    },
    groupOf: ({ sandbox }) => sandbox.org_id,
    maxItems: 256,
    maxInFlight: 2,
    isBalanced: true,
  })
  const oneByOne = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  return async (admission) => {
    const { org_id, spec_json } = admission.sandbox
    if (spec_json.length <= LARGE_TEXT) return admit(admission)
    const release = await oneByOne.acquire(org_id)
    try {
      return await admit(admission)
    } finally {
      release?.()
    }
  }
}

/**
 * Commits sandboxes of one organization in their order, as many as fit its quotas. The first statement commits the
 * sandboxes for which no quota must be counted, usually all. The others are checked and committed under the
 * organization's lock. Rejects when the first statement fails. A failure under the lock affects only the sandboxes that
 * are checked there.
 */
export async function admitBatch(
  deps: AdmitDeps,
  batch: readonly admissions.Admission[],
): Promise<readonly AdmissionResult[]> {
  const [first] = batch
  if (first === undefined) return []
  const { org_id } = first.sandbox
  const { rows } = await deps.db.commitStatement<admissions.AdmissionRow>(
    org_id,
    admissions.insertMany(org_id, batch, { isQuotaChecked: false }),
  )
  const found = new Map(rows.map((row) => [row.id, row]))
  const unchecked = batch.filter(({ sandbox }) => found.get(sandbox.id)?.skips_quota_check !== true)
  const checked: Results = unchecked.length === 0 ? new Map() : await admitUnderLock(deps, org_id, unchecked)
  return batch.map(
    (admission) =>
      checked.get(admission) ?? (found.get(admission.sandbox.id)?.is_admitted === true ? ADMITTED : CONFLICT),
  )
}

async function admitUnderLock(
  { db, clock }: AdmitDeps,
  org: OrgId,
  batch: readonly admissions.Admission[],
): Promise<Results> {
  try {
    return await db.transaction(org, (tx) => admitWithinQuota(tx, org, { batch, now: clock.now() }))
  } catch (error) {
    return new Map(batch.map((admission) => [admission, { kind: 'failed', error }]))
  }
}

/**
 * Admits the creates that fit the quotas. A create that fits but then meets a conflict uses no quota. Creates that were
 * refused in the same round may fit now, and are checked again. Each round decides at least one create.
 */
async function admitWithinQuota(
  tx: Queryable,
  org: OrgId,
  { batch, now }: { readonly batch: readonly admissions.Admission[]; readonly now: Date },
): Promise<Results> {
  await orgs.lock(tx, org)
  const results: Results = new Map()
  for (let left = batch; left.length > 0;) {
    const usage = await quotas.readUsage(tx, org, { now, counts: 'decisive' })
    const { fitting, refused } = splitByQuota(usage, left, quotaRequestOf)
    const { rows } =
      fitting.length === 0
        ? { rows: [] }
        : await tx.query<admissions.AdmissionRow>(admissions.insertMany(org, fitting, { isQuotaChecked: true }))
    const admitted = new Set(rows.flatMap(({ id, is_admitted }) => (is_admitted ? [id] : [])))
    for (const admission of fitting) results.set(admission, admitted.has(admission.sandbox.id) ? ADMITTED : CONFLICT)
    for (const [admission, refusal] of refused) results.set(admission, { kind: 'refused', refusal, slug: usage.slug })
    left = admitted.size === fitting.length ? [] : [...refused.keys()]
  }
  return results
}

function quotaRequestOf({ sandbox }: admissions.Admission): QuotaRequest {
  const { ephemeral, vcpus, memory_mib, disk_size_mib, max_duration_secs } = sandbox
  const starts = sandbox.run_id !== null
  return { creates: true, starts, ephemeral, vcpus, memory_mib, disk_size_mib, max_duration_secs }
}
