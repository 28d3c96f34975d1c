import type { OrgId } from '../../../domain/ids.ts'
import { splitByQuota, type QuotaRequest, type QuotaRefusal } from '../../../domain/orgs/quota.ts'
import { makeBatch } from '../../../lib/turns/batch.ts'
import { makeFairSemaphore } from '../../../lib/turns/fair-semaphore.ts'
import * as admissions from '../../../store/sandboxes/admissions.ts'
import { isLockTimeout, type Queryable } from '../../../store/postgres/database.ts'
import * as orgs from '../../../store/orgs/orgs.ts'
import * as quotas from '../../../store/orgs/quotas.ts'
import type { BaseDeps } from '../../deps.ts'
import { workerTopic } from '../../topics.ts'
import { placeAdmissions, type AdmissionPlacer, type PlacedAdmission } from './place-admissions.ts'
import type { EventObserver, TransitionObserver } from '../transitions/transition.ts'
import type { TransitionStep } from '../transitions/transition-step.ts'

/**
 * The result of a create. `admitted`, with `isPlaced` if its run already has a worker. `conflict`: another sandbox has
 * its name or slug, or it mounts a volume that is not active. `failed`: the transaction that checks its quota failed.
 */
export type AdmissionResult =
  | { readonly kind: 'admitted'; readonly isPlaced: boolean }
  | { readonly kind: 'conflict' }
  | { readonly kind: 'refused'; readonly refusal: QuotaRefusal; readonly slug: string }
  | { readonly kind: 'failed'; readonly error: unknown }

/** Commits a new sandbox, in one transaction with others of its organization that arrive at the same time. */
export type SandboxAdmitter = { readonly admitInBatch: (admission: admissions.Admission) => Promise<AdmissionResult> }

const ADMITTED: AdmissionResult = { kind: 'admitted', isPlaced: false }
const PLACED: AdmissionResult = { kind: 'admitted', isPlaced: true }
const CONFLICT: AdmissionResult = { kind: 'conflict' }

type AdmitDeps = Pick<BaseDeps, 'db' | 'clock' | 'uuids' | 'notifications'> & EventObserver & TransitionObserver
type Results = Map<admissions.Admission, AdmissionResult>

/**
 * Makes the function with which a process admits sandboxes in batches. More than two batches at a time, or batches of
 * more than 256 sandboxes, did not raise the rate of creates (2026-11). Of large specifications, one is written at a time,
 * organizations in turn.
 */
export function makeAdmitInBatch(
  deps: AdmitDeps & { readonly admissionPlacer: AdmissionPlacer },
): SandboxAdmitter['admitInBatch'] {
  const admit = makeBatch<admissions.Admission, AdmissionResult>({
    run: (batch) => admitBatch(deps, batch),
    groupOf: ({ sandbox }) => sandbox.org_id,
    maxItems: 256,
    maxInFlight: 2,
    isBalanced: true,
    isAmongOthers: (org) => deps.db.isAmongOthers(org as OrgId), // `groupOf` makes no other
  })
  const oneByOne = makeFairSemaphore({ permits: 1, permitsPerKey: 1, waitersPerKey: Number.MAX_SAFE_INTEGER })
  return async (admission) => {
    if (!admissions.hasLargeSpec(admission)) return admit(admission)
    const release = await oneByOne.acquire(admission.sandbox.org_id)
    try {
      return await admit(admission)
    } finally {
      release?.()
    }
  }
}

/**
 * Commits sandboxes of one organization in their order, as many as fit its quotas. The first transaction commits the
 * sandboxes for which no quota must be counted, usually all, and places those that it can. The others are checked and committed under the
 * organization's lock. Rejects when the first transaction fails. A failure under the lock affects only the sandboxes that
 * are checked there.
 */
export async function admitBatch(
  deps: AdmitDeps & { readonly admissionPlacer: AdmissionPlacer },
  batch: readonly admissions.Admission[],
): Promise<readonly AdmissionResult[]> {
  const [first] = batch
  if (first === undefined) return []
  const { org_id } = first.sandbox
  const { rows, placed } = await insertUncounted(deps, org_id, batch)
  const found = new Map(rows.map((row) => [row.id, row]))
  const isAdmitted = ({ sandbox }: admissions.Admission): boolean => found.get(sandbox.id)?.is_admitted === true
  const unchecked = batch.filter(({ sandbox }) => found.get(sandbox.id)?.skips_quota_check !== true)
  deps.admissionPlacer.noteCounted(org_id, unchecked.length === batch.length)
  const placedNow = batch.flatMap((one) => (isAdmitted(one) ? (placed.get(one) ?? []) : []))
  deps.notifications.publish([...new Set(placedNow.flatMap(({ step }) => topicOfWorker(step)))])
  deps.onTransitions?.(placedNow.map(({ step }) => step))
  const checked: Results = unchecked.length === 0 ? new Map() : await admitUnderLock(deps, org_id, unchecked)
  const results = batch.map((one) => {
    if (!isAdmitted(one)) return checked.get(one) ?? CONFLICT
    return placed.has(one) ? PLACED : ADMITTED
  })
  deps.onEvents?.(
    batch.flatMap((one, index) =>
      results[index]?.kind === 'admitted' ? (placed.get(one)?.admission ?? one).events : [],
    ),
  )
  return results
}

type Inserted = {
  readonly rows: readonly admissions.AdmissionRow[]
  /** The admissions whose rows have a worker, if they were inserted. */
  readonly placed: ReadonlyMap<admissions.Admission, PlacedAdmission>
}

/**
 * Inserts the admissions for which no quota must be counted. Those with a suggested worker are placed in the same transaction. It sees
 * the runs of all organizations while it reserves capacity, and then only its own rows.
 */
async function insertUncounted(
  deps: AdmitDeps & { readonly admissionPlacer: AdmissionPlacer },
  org: OrgId,
  batch: readonly admissions.Admission[],
): Promise<Inserted> {
  const suggestions = await deps.admissionPlacer.suggest(batch)
  if (suggestions.size > 0) {
    try {
      const { placed, hasWaiting, answer } = await deps.db.transaction('system', async (tx) => {
        const found = await placeAdmissions(deps, tx, suggestions)
        const rows = batch.map((one) => found.placed.get(one)?.admission ?? one)
        tx.seeOnly(org)
        const statement = admissions.insertMany(org, rows, { isQuotaChecked: false })
        return { ...found, answer: tx.send<admissions.AdmissionRow>(statement) } // not awaited: it shares a round trip with the commit
      })
      if (hasWaiting) deps.admissionPlacer.noteWaiting()
      else if (placed.size < suggestions.size) deps.admissionPlacer.forget()
      return { rows: (await answer).rows, placed }
    } catch (error) {
      deps.admissionPlacer.forget()
      if (!isLockTimeout(error)) throw error // a worker's row that stays locked must not keep sandboxes from being created
    }
  }
  const statement = admissions.insertMany(org, batch, { isQuotaChecked: false })
  return { ...(await deps.db.commitStatement<admissions.AdmissionRow>(org, statement)), placed: new Map() }
}

function topicOfWorker({ request }: TransitionStep): readonly string[] {
  return request.worker === undefined ? [] : [workerTopic(request.worker.id)]
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
