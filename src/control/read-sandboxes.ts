import type { Caller } from '../domain/caller.ts'
import { asId, type SandboxId } from '../domain/ids.ts'
import { Problem } from '../domain/problem.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import * as sandboxes from '../store/sandboxes.ts'
import type { ControlDeps } from './deps.ts'
import { readPage, type Page, type PageInput } from './page.ts'

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
 * A page of the organization's sandboxes, the newest first, all labels matching. Throws `invalid_request` for a bad
 * cursor.
 */
export async function listSandboxes(
  deps: ReadDeps,
  caller: Caller,
  input: PageInput & { readonly labels: Readonly<Record<string, string>> },
): Promise<Page<Sandbox>> {
  const labels = Object.entries(input.labels)
  const { org_id } = caller
  return readPage('sandboxes', input, (after, count) => {
    const before = after === null ? null : asId<SandboxId>(after)
    return deps.db.asOrg(org_id, (q) => sandboxes.page(q, org_id, { labels, before }, count))
  })
}
