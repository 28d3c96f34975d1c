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
 * Changes a sandbox's name, slug or both. An absent field keeps its value. May be repeated. Throws `sandbox_not_found`,
 * `name_already_exists` and `precondition_failed`.
 */
export async function renameSandbox(
  deps: WriteDeps & SandboxReader,
  caller: Caller,
  ref: SandboxRef,
  to: Conditions & { readonly name?: string; readonly slug?: string },
): Promise<Sandbox> {
  const name = to.name ?? null
  const slug = to.slug ?? null
  if (name === null && slug === null) {
    const unchanged = await getSandbox(deps, caller, ref)
    requireMatch(to.ifMatch ?? null, etagOf(renderSandbox(unchanged)))
    return unchanged
  }
  const sandbox = await getSummary(deps, caller, ref)
  const precondition = ifMatchPrecondition(sandbox, to)
  const isFound = await mapTakenName({ name, slug }, () =>
    deps.db.transaction(caller.org_id, async (tx) => {
      await precondition?.(tx)
      if (!(await sandboxes.rename(tx, caller.org_id, sandbox.id, { name, slug }))) return false
      const { org_id, actor } = caller
      const payload = {
        sandbox_id: sandbox.id,
        name: name ?? sandbox.name,
        slug: slug ?? sandbox.slug,
        from: { name: sandbox.name, slug: sandbox.slug },
      }
      await recordEvent(deps, tx, { org_id, actor, event_type: 'sandbox_renamed', payload })
      return true
    }),
  )
  if (!isFound) throw new Problem('sandbox_not_found')
  return getSandbox(deps, caller, { id: sandbox.id })
}

async function mapTakenName<T>(
  to: { readonly name: string | null; readonly slug: string | null },
  write: () => Promise<T>,
): Promise<T> {
  try {
    return await write()
  } catch (error) {
    const constraint = violatedConstraint(error)
    if (constraint === 'sandboxes_name_key') throw nameTaken('name', to.name)
    if (constraint === 'sandboxes_slug_key') throw nameTaken('slug', to.slug)
    throw error
  }
}
