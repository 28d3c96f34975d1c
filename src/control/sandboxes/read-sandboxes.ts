import type { Caller } from '../../domain/orgs/caller.ts'
import { decodeCursor, encodeCursor } from '../../domain/requests/cursor.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox, SandboxKey } from '../../domain/sandboxes/sandbox.ts'
import { makeBatch } from '../../lib/batch.ts'
import { page } from '../../store/sandboxes/sandbox-pages.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { BaseDeps } from '../deps.ts'
import type { Page, PageInput } from '../requests/page.ts'

/** The id or name by which a request identifies a sandbox. */
export type SandboxRef = { readonly id: SandboxId } | { readonly name: string }

/** Reads one sandbox of an organization by its id. Concurrent reads share one statement. */
export type SandboxReader = { readonly readSandbox: (key: SandboxKey) => Promise<Sandbox | null> }

type ReadDeps = Pick<BaseDeps, 'db' | 'clock'> & SandboxReader

/** Makes the function that reads the sandboxes of a process in batches. */
export function makeReadSandbox({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): SandboxReader['readSandbox'] {
  return makeBatch<SandboxKey, Sandbox | null>({
    async run(keys) {
      const [first] = keys
      if (first === undefined) return []
      const { org_id } = first
      const ids = keys.map(({ id }) => id)
      const found = await db.asOrg(org_id, (q) => sandboxes.findMany(q, org_id, ids, clock.now()))
      const byId = new Map<string, Sandbox>(found.map((sandbox) => [sandbox.id, sandbox]))
      return keys.map(({ id }) => byId.get(id.toLowerCase()) ?? null)
    },
    groupOf: ({ org_id }) => org_id,
    maxItems: 128,
    maxInFlight: 4,
  })
}

/**
 * Reads a sandbox of the caller's organization. Throws `sandbox_not_found`, also for another organization's sandbox.
 */
export async function getSandbox(deps: ReadDeps, caller: Caller, ref: SandboxRef): Promise<Sandbox> {
  const org = caller.org_id
  const sandbox =
    'id' in ref
      ? await deps.readSandbox({ org_id: org, id: ref.id })
      : await deps.db.asOrg(org, (q) => sandboxes.findByName(q, org, ref.name, deps.clock.now()))
  if (sandbox === null) throw new Problem('sandbox_not_found')
  return sandbox
}

/**
 * A page of the organization's sandboxes that have all the given labels, newest first. More pages may follow a page
 * with fewer than `limit` items. Throws `invalid_request` for a bad cursor.
 */
export async function listSandboxes(
  deps: Pick<BaseDeps, 'db'>,
  caller: Caller,
  { cursor, limit, labels }: PageInput & { readonly labels: Readonly<Record<string, string>> },
): Promise<Page<Sandbox>> {
  const org = caller.org_id
  const before = cursor === null ? null : asId<SandboxId>(decodeCursor('sandboxes', cursor))
  const filter = { labels: Object.entries(labels), before }
  const { rows, nextBefore } = await deps.db.asOrg(org, (q) => page(q, org, filter, limit + 1))
  const items = rows.slice(0, limit)
  const last = rows.length > limit ? (items.at(-1)?.id ?? null) : nextBefore
  return { items, nextCursor: last === null ? null : encodeCursor('sandboxes', last) }
}
