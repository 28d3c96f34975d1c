import type { Caller } from '../domain/caller.ts'
import type { OrgId } from '../domain/ids.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import { makeBatch } from '../lib/batch.ts'
import * as admissions from '../store/admissions.ts'
import type { Database } from '../store/database.ts'
import * as sandboxes from '../store/sandboxes.ts'
import * as workers from '../store/workers.ts'
import type { ControlDeps, KeyCache, SandboxKey } from './deps.ts'

/** Adds to what the use cases are given the parts that work on many requests together. */
export function makeControlDeps(base: Omit<ControlDeps, 'readSandbox' | 'admit' | 'offers' | 'keyCache'>): ControlDeps {
  return {
    ...base,
    readSandbox: makeBatch<SandboxKey, Sandbox | null>({
      run: (wanted) => readTogether(base.db, wanted, base.clock.now()),
      maxItems: 128,
      maxInFlight: 4,
    }),
    // Two batches of up to 256: measured as the knee of the curve (measurements.md, "Store").
    admit: makeBatch<admissions.Admission, boolean>({
      run: (wanted) => admitTogether(base.db, wanted),
      maxItems: 256,
      maxInFlight: 2,
    }),
    offers: makeOffers(base),
    keyCache: makeKeyCache(),
  }
}

async function readTogether(
  db: Database,
  wanted: readonly SandboxKey[],
  now: Date,
): Promise<readonly (Sandbox | null)[]> {
  const found = new Map<string, Sandbox>()
  await Promise.all(
    [...groupByOrg(wanted, ({ org_id }) => org_id)].map(async ([org, keys]) => {
      const ids = keys.map(({ id }) => id)
      for (const sandbox of await db.asOrg(org, (q) => sandboxes.findMany(q, org, ids, now))) {
        found.set(`${org} ${sandbox.id}`, sandbox)
      }
    }),
  )
  return wanted.map(({ org_id, id }) => found.get(`${org_id} ${id.toLowerCase()}`) ?? null)
}

async function admitTogether(db: Database, wanted: readonly admissions.Admission[]): Promise<readonly boolean[]> {
  const admitted = new Set<string>()
  await Promise.all(
    [...groupByOrg(wanted, ({ sandbox }) => sandbox.org_id)].map(async ([org, group]) => {
      const { rows } = await db.commit<{ readonly id: string }>(org, admissions.insertMany(group))
      for (const { id } of rows) admitted.add(id)
    }),
  )
  return wanted.map(({ sandbox }) => admitted.has(sandbox.id))
}

function groupByOrg<Item>(items: readonly Item[], orgOf: (item: Item) => OrgId): ReadonlyMap<OrgId, readonly Item[]> {
  const groups = new Map<OrgId, Item[]>()
  for (const item of items) {
    const group = groups.get(orgOf(item))
    if (group === undefined) groups.set(orgOf(item), [item])
    else group.push(item)
  }
  return groups
}

/** How long what the workers offer is believed without asking again. */
const OFFERS_TRUST_MS = 1_000

/** One question to the database for each create was a fifth of its time (profiled in 2026-11). */
function makeOffers({ db, clock }: Pick<ControlDeps, 'db' | 'clock'>): ControlDeps['offers'] {
  let known: readonly (readonly string[])[] = []
  let untilMs = Number.NEGATIVE_INFINITY
  return async ({ isFresh }) => {
    if (isFresh || clock.monotonicMs() >= untilMs) {
      known = await db.asSystem((q) => workers.abilitiesOffered(q))
      untilMs = clock.monotonicMs() + OFFERS_TRUST_MS
    }
    return known
  }
}

/** How long a looked-up key is trusted without asking again: a revoked one is refused everywhere after this. */
const KEY_TRUST_MS = 1_000
/** The most keys that are remembered. */
const KEY_CACHE_LIMIT = 10_000

function makeKeyCache(): KeyCache {
  const callers = new Map<string, { readonly caller: Caller; readonly untilMs: number }>()
  return {
    get(hash, nowMs) {
      const entry = callers.get(hash)
      return entry !== undefined && nowMs < entry.untilMs ? entry.caller : undefined
    },
    set(hash, caller, nowMs) {
      if (callers.size >= KEY_CACHE_LIMIT) callers.clear()
      callers.set(hash, { caller, untilMs: nowMs + KEY_TRUST_MS })
    },
  }
}
