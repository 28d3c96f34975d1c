import type { WorkerId } from '../domain/ids.ts'
import type { Sandbox } from '../domain/sandboxes/sandbox.ts'
import { makeBatch } from '../lib/batch.ts'
import { makeSingleFlight } from '../lib/single-flight.ts'
import type { Admission } from '../store/sandboxes/admissions.ts'
import type { Database } from '../store/postgres/database.ts'
import * as sandboxes from '../store/sandboxes/sandboxes.ts'
import * as workers from '../store/workers/workers.ts'
import { admitBatch, type AdmissionResult } from './sandboxes/admit-batch.ts'
import { makeIdempotencyClaims } from './requests/idempotency-claims.ts'
import type { ControlDeps, SandboxKey } from './deps.ts'
import { deleteBatch, type Deletion, type DeletionResult } from './sandboxes/delete-batch.ts'
import { makeExplainWaiting } from './sandboxes/explain-waiting.ts'
import { makeKeyCache } from './orgs/key-cache.ts'
import { makeKeyUseRecorder } from './orgs/key-use-recorder.ts'
import { transitionBatch, type BatchedTransition, type Transition } from './sandboxes/transition.ts'
import { makeWaitHub } from './sandboxes/wait-hub.ts'
import { makeRecordReportInBatch } from './workers/take-plain.ts'
import { makeCallerWatcher } from './streams/watch-caller.ts'

/** Adds to what the use cases are given the parts that work on many requests together. */
export function makeControlDeps(
  base: Omit<
    ControlDeps,
    | 'readSandbox'
    | 'admit'
    | 'together'
    | 'remove'
    | 'offers'
    | 'explainWaiting'
    | 'takePlain'
    | 'findWorker'
    | 'keyCache'
    | 'noteKeyUse'
    | 'callerWatches'
    | 'waitHub'
    | 'claims'
  >,
): ControlDeps {
  const readSandbox = makeBatch<SandboxKey, Sandbox | null>({
    run: (wanted) => readSandboxBatch(base.db, wanted, base.clock.now()),
    groupOf: ({ org_id }) => org_id,
    maxItems: 128,
    maxInFlight: 4,
  })
  return {
    ...base,
    readSandbox,
    waitHub: makeWaitHub({
      ...base,
      readSandbox,
      met: (wishes) => base.db.asSystem((q) => sandboxes.findSatisfied(q, wishes)),
    }),
    claims: makeIdempotencyClaims(base),
    // Two batches of up to 256: measured as the knee of the curve (measurements.md, "Store").
    admit: makeBatch<Admission, AdmissionResult>({
      run: (wanted) => admitBatch(base, wanted),
      groupOf: ({ sandbox }) => sandbox.org_id,
      maxItems: 256,
      maxInFlight: 2,
      isBalanced: true,
    }),
    together: makeBatch<Transition, BatchedTransition>({
      run: (wanted) => transitionBatch(base, wanted),
      groupOf: () => '',
      maxItems: 128,
      maxInFlight: 2,
    }),
    remove: makeBatch<Deletion, DeletionResult>({
      run: (wanted) => deleteBatch(base, wanted),
      groupOf: () => '',
      maxItems: 128,
      maxInFlight: 2,
    }),
    offers: makeWorkerAbilities(base),
    explainWaiting: makeExplainWaiting(base),
    takePlain: makeRecordReportInBatch(base),
    findWorker: makeBatch<Buffer, WorkerId | null>({
      run: (wanted) => base.db.asSystem((q) => workers.findByCredentials(q, wanted)),
      groupOf: () => 'all',
      maxItems: 256,
      maxInFlight: 2,
    }),
    keyCache: makeKeyCache(),
    noteKeyUse: makeKeyUseRecorder(base),
    callerWatches: makeCallerWatcher(base),
  }
}

/** Reads sandboxes of one organization. */
async function readSandboxBatch(
  db: Database,
  wanted: readonly SandboxKey[],
  now: Date,
): Promise<readonly (Sandbox | null)[]> {
  const [first] = wanted
  if (first === undefined) return []
  const org = first.org_id
  const ids = wanted.map(({ id }) => id)
  const found = await db.asOrg(org, (q) => sandboxes.findMany(q, org, ids, now))
  const byId = new Map<string, Sandbox>(found.map((sandbox) => [sandbox.id, sandbox]))
  return wanted.map(({ id }) => byId.get(id.toLowerCase()) ?? null)
}

/** How long what the workers offer is believed without asking again. */
const ABILITIES_CACHED_MS = 1_000

/**
 * Without it each create asks the database once more than it must (seen in a profile of 2026-11); who asks while another
 * one does gets the same answer.
 */
function makeWorkerAbilities({ db, clock }: Pick<ControlDeps, 'db' | 'clock'>): ControlDeps['offers'] {
  let known: readonly (readonly string[])[] = []
  let untilMs = Number.NEGATIVE_INFINITY
  const ask = async (): Promise<typeof known> => {
    known = await db.asSystem((q) => workers.listAbilities(q))
    untilMs = clock.monotonicMs() + ABILITIES_CACHED_MS
    return known
  }
  const asking = makeSingleFlight<typeof known>()
  return async ({ isFresh }) => {
    if (isFresh) return ask()
    return clock.monotonicMs() < untilMs ? known : asking.join('abilities', ask).result
  }
}
