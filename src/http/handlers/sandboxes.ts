import { OPERATIONS } from '../../contract/operations.ts'
import type { SANDBOX_BY_NAME_OPERATIONS } from '../../contract/operations/sandboxes-by-name.ts'
import type { SANDBOX_OPERATIONS } from '../../contract/operations/sandboxes.ts'
import type { SandboxRef } from '../../control/read-sandboxes.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { parseLabelFilter } from '../../domain/labels.ts'
import { PAGE_DEFAULT, WAIT_DEFAULT_SECS } from '../../domain/limits.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../../domain/names.ts'
import { normalizeSpec } from '../../domain/normalize-spec.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandbox.ts'
import { refuse, renderPage, type Handler, type HandlerMaker } from '../handler.ts'
import type { UseCases } from '../use-cases.ts'

type Handled = Exclude<keyof typeof SANDBOX_OPERATIONS, 'open_agent'> | keyof typeof SANDBOX_BY_NAME_OPERATIONS

/** What the operations on sandboxes ask of the use cases. */
export function makeSandboxHandlers(useCases: UseCases, handler: HandlerMaker): Record<Handled, Handler> {
  return {
    create_sandbox: handler(OPERATIONS.create_sandbox, async ({ query, body }, { caller, signal }) => {
      const result = normalizeSpec(body)
      if ('refusal' in result) throw refusalProblem(result.refusal)
      const start = query.start ?? false
      if (!start && query.wait_for !== undefined) refuse('query.wait_for', query.wait_for, 'start=true beside wait_for')
      return renderSandbox(
        await useCases.createSandbox(caller, {
          ...result.normalized,
          start,
          waitMs: waitMsOf(query),
          signal: signal(),
        }),
      )
    }),
    list_sandboxes: handler(OPERATIONS.list_sandboxes, async ({ query }, { caller }) => {
      const filter = parseLabelFilter(query.labels ?? '{}')
      if ('refusal' in filter) throw refusalProblem(filter.refusal)
      const { cursor = null, limit = PAGE_DEFAULT } = query
      return renderPage(await useCases.listSandboxes(caller, { cursor, limit, labels: filter.labels }), renderSandbox)
    }),
    get_sandbox: handler(OPERATIONS.get_sandbox, ({ params }, { caller }) =>
      rendered(useCases.getSandbox(caller, byId(params))),
    ),
    get_sandbox_by_name: handler(OPERATIONS.get_sandbox_by_name, ({ params }, { caller }) =>
      rendered(useCases.getSandbox(caller, byName(params))),
    ),
    update_sandbox: handler(OPERATIONS.update_sandbox, ({ params, body }, { caller }) =>
      rendered(useCases.renameSandbox(caller, byId(params), changeOf(body))),
    ),
    update_sandbox_by_name: handler(OPERATIONS.update_sandbox_by_name, ({ params, body }, { caller }) =>
      rendered(useCases.renameSandbox(caller, byName(params), changeOf(body))),
    ),
    delete_sandbox: handler(OPERATIONS.delete_sandbox, ({ params }, { caller }) =>
      deleted(useCases.deleteSandbox(caller, byId(params))),
    ),
    delete_sandbox_by_name: handler(OPERATIONS.delete_sandbox_by_name, ({ params }, { caller }) =>
      deleted(useCases.deleteSandbox(caller, byName(params))),
    ),
    start_sandbox: handler(OPERATIONS.start_sandbox, ({ params, query }, { caller, signal }) =>
      rendered(useCases.startSandbox(caller, byId(params), { waitMs: waitMsOf(query), signal: signal() })),
    ),
    start_sandbox_by_name: handler(OPERATIONS.start_sandbox_by_name, ({ params, query }, { caller, signal }) =>
      rendered(useCases.startSandbox(caller, byName(params), { waitMs: waitMsOf(query), signal: signal() })),
    ),
    stop_sandbox: handler(OPERATIONS.stop_sandbox, ({ params }, { caller }) =>
      rendered(useCases.stopSandbox(caller, byId(params))),
    ),
    stop_sandbox_by_name: handler(OPERATIONS.stop_sandbox_by_name, ({ params }, { caller }) =>
      rendered(useCases.stopSandbox(caller, byName(params))),
    ),
  }
}

function byId({ sandbox_id }: { readonly sandbox_id: string }): SandboxRef {
  return { id: asId<SandboxId>(sandbox_id.toLowerCase()) }
}

/** What can't be a name is the name of no sandbox. */
function byName({ name }: { readonly name: string }): SandboxRef {
  if (!isName(name))
    throw new Problem('sandbox_not_found', {
      details: { field: 'path.name', seen: describeSeen(name), accepted: NAME_RULE },
    })
  return { name }
}

type Change = { readonly name?: string | null; readonly slug?: string | null }

function changeOf({ name, slug }: Change): { readonly name?: string; readonly slug?: string } {
  if (typeof name === 'string' && !isName(name)) refuse('name', name, NAME_RULE)
  if (typeof slug === 'string' && !isSlug(slug)) refuse('slug', slug, SLUG_RULE)
  return { ...(typeof name === 'string' ? { name } : {}), ...(typeof slug === 'string' ? { slug } : {}) }
}

/** Contract decisions, "`wait_timeout` without `wait_for`". */
function waitMsOf(query: { readonly wait_for?: 'running'; readonly wait_timeout?: number }): number | null {
  if (query.wait_for !== undefined) return (query.wait_timeout ?? WAIT_DEFAULT_SECS) * 1000
  if (query.wait_timeout !== undefined)
    refuse('query.wait_timeout', query.wait_timeout, 'wait_for=running beside wait_timeout')
  return null
}

async function rendered(sandbox: Promise<Sandbox>): Promise<string> {
  return renderSandbox(await sandbox)
}

async function deleted(deletion: Promise<void>): Promise<string> {
  await deletion
  return '{"message":"sandbox deleted"}'
}
