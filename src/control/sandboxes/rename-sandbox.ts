import type { Caller } from '../../domain/orgs/caller.ts'
import { requireMatch, etagOf } from '../../domain/requests/etag.ts'
import { Problem } from '../../domain/problem.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import * as sandboxes from '../../store/sandboxes/sandboxes.ts'
import { nameTaken } from './create-sandbox.ts'
import type { WriteDeps } from '../deps.ts'
import { getSandbox, getSummary, type SandboxReader, type SandboxRef } from './read-sandboxes.ts'
import { ifMatchPrecondition, type Conditions } from './if-match.ts'
import { recordEvent } from '../events/record-event.ts'

/**
 * Changes a sandbox's name, slug or both. An absent field keeps its value. May be repeated: names that it has already leave no event.
 * Throws `sandbox_not_found`, `name_already_exists` and `precondition_failed`.
 */
export async function renameSandbox(
  deps: WriteDeps & SandboxReader,
  caller: Caller,
  ref: SandboxRef,
  change: Conditions & { readonly name?: string; readonly slug?: string },
): Promise<Sandbox> {
  const name = change.name ?? null
  const slug = change.slug ?? null
  if (name === null && slug === null) {
    const unchanged = await getSandbox(deps, caller, ref)
    requireMatch(change.ifMatch ?? null, etagOf(renderSandbox(unchanged)))
    return unchanged
  }
  const sandbox = await getSummary(deps, caller, ref)
  const precondition = ifMatchPrecondition(sandbox, change)
  await mapTakenName({ name, slug }, () =>
    deps.db.transaction(caller.org_id, async (tx) => {
      await precondition?.(tx)
      const renamed = await sandboxes.rename(tx, sandbox, { name, slug })
      if (renamed === null) throw new Problem('sandbox_not_found')
      const { from, to } = renamed
      if (from.name === to.name && from.slug === to.slug) return
      const { org_id, actor } = caller
      const payload = { sandbox_id: sandbox.id, ...to, from }
      await recordEvent(deps, tx, { org_id, actor, event_type: 'sandbox_renamed', payload })
    }),
  )
  return getSandbox(deps, caller, { id: sandbox.id })
}

async function mapTakenName(
  to: { readonly name: string | null; readonly slug: string | null },
  write: () => Promise<void>,
): Promise<void> {
  try {
    await write()
  } catch (error) {
    const constraint = violatedConstraint(error)
    if (constraint === 'sandboxes_name_key') throw nameTaken('name', to.name)
    if (constraint === 'sandboxes_slug_key') throw nameTaken('slug', to.slug)
    throw error
  }
}
