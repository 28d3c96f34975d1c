import type { Caller } from '../domain/caller.ts'
import type { OrgId } from '../domain/ids.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import { makeBatch } from '../lib/batch.ts'
import type { Database } from '../store/database.ts'
import * as events from '../store/events.ts'
import * as sandboxes from '../store/sandboxes.ts'
import type { Admission, ControlDeps, KeyCache, SandboxKey } from './deps.ts'

/** Adds to what the use cases are given the parts that work on many requests together. */
export function makeControlDeps(base: Omit<ControlDeps, 'readSandbox' | 'admit' | 'keyCache'>): ControlDeps {
  return {
    ...base,
    readSandbox: makeBatch<SandboxKey, Sandbox | null>({
      run: (wanted) => readTogether(base.db, wanted, base.clock.now()),
      maxItems: 128,
      maxInFlight: 4,
    }),
    // Two batches of up to 256: measured as the knee of the curve (measurements.md, "Store").
    admit: makeBatch<Admission, boolean>({
      run: (admissions) => admitTogether(base.db, admissions),
      maxItems: 256,
      maxInFlight: 2,
    }),
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

async function admitTogether(db: Database, admissions: readonly Admission[]): Promise<readonly boolean[]> {
  const admitted = new Set<string>()
  await Promise.all(
    [...groupByOrg(admissions, ({ sandbox }) => sandbox.org_id)].map(async ([org, group]) => {
      const inserted = await db.transaction(org, async (tx) => {
        const ids = await sandboxes.insertMany(
          tx,
          group.map(({ sandbox }) => sandbox),
        )
        const told = group.filter(({ sandbox }) => ids.has(sandbox.id)).flatMap((admission) => admission.events)
        if (told.length > 0) await events.insertMany(tx, told)
        return ids
      })
      for (const id of inserted) admitted.add(id)
    }),
  )
  return admissions.map(({ sandbox }) => admitted.has(sandbox.id))
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
