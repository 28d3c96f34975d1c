import type { Caller } from '../../domain/orgs/caller.ts'
import { decodeCursor, encodeCursor } from '../../domain/requests/cursor.ts'
import { asId, type OrgId, type SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox, SandboxKey, SandboxSummary } from '../../domain/sandboxes/sandbox.ts'
import { makeBatch } from '../../lib/turns/batch.ts'
import { LARGE_TEXT } from '../../lib/turns/next-turn.ts'
import { page } from '../../store/sandboxes/sandbox-pages.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { BaseDeps } from '../deps.ts'
import type { Page, PageInput } from '../requests/page.ts'

/** The id or name by which a request identifies a sandbox. */
export type SandboxRef = { readonly id: SandboxId } | { readonly name: string }

/** A sandbox that is looked for in an organization. */
type Sought = SandboxRef & { readonly org_id: OrgId }

/** Reads one sandbox of an organization. Concurrent reads by ids share one statement. */
export type SandboxReader = {
  /**
   * Reads a sandbox. One with a large specification is found first, and then read as a whole, so that its parts belong to one state.
   * `beforeLarge`: see `addSpec`.
   */
  readonly readSandbox: (sought: Sought, beforeLarge?: () => void) => Promise<Sandbox | null>
  /** Reads a sandbox, without its specification if that is large. */
  readonly readFound: (sought: Sought) => Promise<sandboxes.FoundSandbox | null>
  /**
   * Adds the specification to what was found, if it is large. The rest stays as it was found. `beforeLarge` is called before a large
   * specification is read. If it throws, that is not read. Null: the sandbox is gone.
   */
  readonly addSpec: (found: sandboxes.FoundSandbox, beforeLarge?: () => void) => Promise<Sandbox | null>
  readonly readSummary: (sought: Sought) => Promise<sandboxes.FoundSummary | null>
}

/**
 * Makes the functions that read the sandboxes of a process. Large specifications are read one by one. The result of a statement is in
 * memory at once: a batch of 128 had up to 512 MiB.
 */
export function makeSandboxReader({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): SandboxReader {
  const read = batchById((org_id, ids) =>
    db.asOrg(org_id, (q) => sandboxes.findMany(q, { org_id, ids, now: clock.now() }, LARGE_TEXT)),
  )
  const readSummary = batchById((org_id, ids) =>
    db.asOrg(org_id, (q) => sandboxes.findSummaries(q, { org_id, ids, now: clock.now() })),
  )
  const readFound: SandboxReader['readFound'] = (sought) =>
    'id' in sought
      ? read(sought)
      : db.asOrg(sought.org_id, (q) => sandboxes.findByName(q, { ...sought, now: clock.now() }, LARGE_TEXT))
  const readWhole = (found: sandboxes.FoundSandbox, beforeLarge?: () => void): Promise<Sandbox | null> =>
    db.asOrg(found.org_id, (q) => {
      beforeLarge?.()
      return sandboxes.findWhole(q, found, clock.now())
    })
  return {
    readFound,
    async addSpec(found, beforeLarge) {
      if (hasSpec(found)) return found
      const whole = await readWhole(found, beforeLarge)
      return whole === null ? null : { ...found, spec_json: whole.spec_json }
    },
    async readSandbox(sought, beforeLarge) {
      const found = await readFound(sought)
      return found === null || hasSpec(found) ? found : readWhole(found, beforeLarge)
    },
    readSummary: (sought) =>
      'id' in sought
        ? readSummary(sought)
        : db.asOrg(sought.org_id, (q) => sandboxes.findSummaryByName(q, { ...sought, now: clock.now() })),
  }
}

function batchById<Found extends SandboxSummary>(
  find: (org: OrgId, ids: readonly SandboxId[]) => Promise<readonly Found[]>,
): (key: SandboxKey) => Promise<Found | null> {
  return makeBatch<SandboxKey, Found | null>({
    async run(keys) {
      const [first] = keys
      if (first === undefined) return []
      const found = await find(
        first.org_id,
        keys.map(({ id }) => id),
      )
      const byId = new Map<string, Found>(found.map((sandbox) => [sandbox.id, sandbox]))
      return keys.map(({ id }) => byId.get(id.toLowerCase()) ?? null)
    },
    groupOf: ({ org_id }) => org_id,
    maxItems: 128,
    maxInFlight: 4,
  })
}

/** Whether a sandbox was found with its specification. */
export function hasSpec(found: sandboxes.FoundSandbox): found is Sandbox {
  return found.spec_json !== null
}

/**
 * Reads a sandbox of the caller's organization. Throws `sandbox_not_found`, also for another organization's sandbox. `beforeLarge`: see
 * `SandboxReader.addSpec`.
 */
export async function getSandbox(
  { readSandbox }: SandboxReader,
  { org_id }: Caller,
  ref: SandboxRef,
  beforeLarge?: () => void,
): Promise<Sandbox> {
  const sandbox = await readSandbox({ ...ref, org_id }, beforeLarge)
  if (sandbox === null) throw new Problem('sandbox_not_found')
  return sandbox
}

/** The same without the specification. What keeps a sandbox for a while keeps no megabytes then. */
export async function getSummary(
  { readSummary }: SandboxReader,
  { org_id }: Caller,
  ref: SandboxRef,
): Promise<sandboxes.FoundSummary> {
  const sandbox = await readSummary({ ...ref, org_id })
  if (sandbox === null) throw new Problem('sandbox_not_found')
  return sandbox
}

/** Which page of sandboxes. `beforeRead` is called when a database connection is free. If it throws, nothing is read. */
export type ListInput = PageInput & {
  readonly labels: Readonly<Record<string, string>>
  readonly beforeRead?: () => void
}

/**
 * A page of the organization's sandboxes that have all the given labels, newest first. More pages may follow a page
 * with fewer than `limit` items. Throws `invalid_request` for a bad cursor.
 */
export async function listSandboxes(
  deps: Pick<BaseDeps, 'db'>,
  caller: Caller,
  { cursor, limit, labels, beforeRead }: ListInput,
): Promise<Page<Sandbox>> {
  const org = caller.org_id
  const before = cursor === null ? null : asId<SandboxId>(decodeCursor('sandboxes', cursor))
  const filter = { labels: Object.entries(labels), before }
  const { rows, nextBefore } = await deps.db.asOrg(org, (q) => {
    beforeRead?.()
    return page(q, org, filter, limit + 1)
  })
  const items = rows.slice(0, limit)
  const last = rows.length > limit ? (items.at(-1)?.id ?? null) : nextBefore
  return { items, nextCursor: last === null ? null : encodeCursor('sandboxes', last) }
}
