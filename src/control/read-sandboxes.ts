import type { Caller } from '../domain/caller.ts'
import { decodeCursor, encodeCursor } from '../domain/cursor.ts'
import { asId, type SandboxId } from '../domain/ids.ts'
import { Problem } from '../domain/problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import * as sandboxes from '../store/sandboxes.ts'
import type { ControlDeps } from './deps.ts'

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

export type SandboxPage = { readonly items: readonly Sandbox[]; readonly nextCursor: string | null }

/**
 * A page of the organization's sandboxes, the newest first, all labels matching. A cursor is a place in that order:
 * sandboxes that come or go meanwhile neither repeat nor hide others. Throws `invalid_request` for a bad cursor.
 */
export async function listSandboxes(
  deps: ReadDeps,
  caller: Caller,
  input: { readonly cursor: string | null; readonly limit: number; readonly labels: Readonly<Record<string, string>> },
): Promise<SandboxPage> {
  const before = input.cursor === null ? null : asId<SandboxId>(decodeCursor('sandboxes', input.cursor))
  const labels = Object.entries(input.labels)
  const rows = await deps.db.asOrg(caller.org_id, (q) =>
    sandboxes.page(q, caller.org_id, { labels, before }, input.limit + 1),
  )
  const items = rows.slice(0, input.limit)
  const last = items.at(-1)
  return {
    items,
    nextCursor: rows.length > input.limit && last !== undefined ? encodeCursor('sandboxes', last.id) : null,
  }
}
