import type { Caller } from '../../domain/orgs/caller.ts'
import { decodeCursor, encodeCursor } from '../../domain/requests/cursor.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import type { Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { page } from '../../store/sandboxes/sandbox-pages.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import type { ControlDeps } from '../deps.ts'
import type { Page, PageInput } from '../requests/page.ts'

/** How a request names a sandbox. */
export type SandboxRef = { readonly id: SandboxId } | { readonly name: string }

type ReadDeps = Pick<ControlDeps, 'db' | 'clock' | 'readSandbox'>

/** A sandbox of the caller's organization. Throws `sandbox_not_found`, a stranger's included. */
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
 * A page of the organization's sandboxes, the newest first, all labels matching. It may hold fewer than `limit` and still
 * have a next one. Throws `invalid_request` for a bad cursor.
 */
export async function listSandboxes(
  deps: ReadDeps,
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
