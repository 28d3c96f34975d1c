import { OPERATIONS } from '../../contract/operations.ts'
import type { SANDBOX_BY_NAME_OPERATIONS } from '../../contract/sandboxes/operations-by-name.ts'
import type { SANDBOX_OPERATIONS } from '../../contract/sandboxes/operations.ts'
import type { SandboxRef } from '../../control/sandboxes/read-sandboxes.ts'
import type { StartOptions } from '../../control/sandboxes/start-sandbox.ts'
import type { PreparedWait, WaitInput } from '../../control/sandboxes/wait-for-sandbox.ts'
import { asId, type RunId, type SandboxId } from '../../domain/ids.ts'
import {
  isTerminal,
  SANDBOX_STATUSES,
  type SandboxStatus,
  type StatusReason,
} from '../../domain/sandboxes/lifecycle.ts'
import { parseLabelFilter } from '../../domain/sandboxes/labels.ts'
import { PAGE_DEFAULT, WAIT_DEFAULT_SECS } from '../../domain/requests/request-bounds.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../../domain/sandboxes/names.ts'
import { normalizeSpec } from '../../domain/spec/normalize-spec.ts'
import { appendMembers } from '../../domain/json-text.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeen, refusalProblem } from '../../domain/spec/refusal.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import {
  messageReply, refuseField, renderPage, taggedReply, type Handler, type HandlerFactory, type DeferredReply,
  type AuthenticatedRequest, type TaggedReply,
} from './handler.ts' // prettier-ignore
import type { UseCases } from '../use-cases.ts'

type Handled = Exclude<keyof typeof SANDBOX_OPERATIONS, 'open_agent'> | keyof typeof SANDBOX_BY_NAME_OPERATIONS

/** What the operations on sandboxes ask of the use cases. */
export function makeSandboxHandlers(useCases: UseCases, handler: HandlerFactory): Record<Handled, Handler> {
  return {
    create_sandbox: handler(OPERATIONS.create_sandbox, async ({ query, body }, { caller, signal, once }) => {
      const result = normalizeSpec(body)
      if ('refusal' in result) throw refusalProblem(result.refusal)
      const start = query.start ?? false
      if (!start && query.wait_for !== undefined)
        refuseField('query.wait_for', query.wait_for, 'start=true beside wait_for')
      const waitMs = parseWaitMs(query)
      return renderWithDetails(
        useCases,
        useCases.createSandbox(caller, {
          ...result.normalized,
          start,
          waitMs,
          signal: waitMs === null ? null : signal(),
          once,
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
      renderWithDetails(useCases, useCases.getSandbox(caller, refById(params))),
    ),
    get_sandbox_by_name: handler(OPERATIONS.get_sandbox_by_name, ({ params }, { caller }) =>
      renderWithDetails(useCases, useCases.getSandbox(caller, refByName(params))),
    ),
    wait_for_sandbox: handler(OPERATIONS.wait_for_sandbox, ({ params, query }, raw) =>
      deferWait(useCases, useCases.waitForSandbox(raw.caller, refById(params), parseWait(query))),
    ),
    wait_for_sandbox_by_name: handler(OPERATIONS.wait_for_sandbox_by_name, ({ params, query }, raw) =>
      deferWait(useCases, useCases.waitForSandbox(raw.caller, refByName(params), parseWait(query))),
    ),
    update_sandbox: handler(OPERATIONS.update_sandbox, ({ params, body }, { caller, ifMatch }) =>
      renderWithDetails(useCases, useCases.renameSandbox(caller, refById(params), { ...parseRename(body), ifMatch })),
    ),
    update_sandbox_by_name: handler(OPERATIONS.update_sandbox_by_name, ({ params, body }, { caller, ifMatch }) =>
      renderWithDetails(useCases, useCases.renameSandbox(caller, refByName(params), { ...parseRename(body), ifMatch })),
    ),
    delete_sandbox: handler(OPERATIONS.delete_sandbox, ({ params }, { caller, ifMatch }) =>
      confirmDeletion(useCases.deleteSandbox(caller, refById(params), ifMatch)),
    ),
    delete_sandbox_by_name: handler(OPERATIONS.delete_sandbox_by_name, ({ params }, { caller, ifMatch }) =>
      confirmDeletion(useCases.deleteSandbox(caller, refByName(params), ifMatch)),
    ),
    start_sandbox: handler(OPERATIONS.start_sandbox, ({ params, query }, raw) =>
      renderWithDetails(useCases, useCases.startSandbox(raw.caller, refById(params), startOptions(query, raw))),
    ),
    start_sandbox_by_name: handler(OPERATIONS.start_sandbox_by_name, ({ params, query }, raw) =>
      renderWithDetails(useCases, useCases.startSandbox(raw.caller, refByName(params), startOptions(query, raw))),
    ),
    stop_sandbox: handler(OPERATIONS.stop_sandbox, ({ params }, { caller, once, ifMatch }) =>
      renderWithDetails(useCases, useCases.stopSandbox(caller, refById(params), { once, ifMatch })),
    ),
    stop_sandbox_by_name: handler(OPERATIONS.stop_sandbox_by_name, ({ params }, { caller, once, ifMatch }) =>
      renderWithDetails(useCases, useCases.stopSandbox(caller, refByName(params), { once, ifMatch })),
    ),
  }
}

function refById({ sandbox_id }: { readonly sandbox_id: string }): SandboxRef {
  return { id: asId<SandboxId>(sandbox_id.toLowerCase()) }
}

/** What can't be a name is the name of no sandbox. */
function refByName({ name }: { readonly name: string }): SandboxRef {
  if (!isName(name))
    throw new Problem('sandbox_not_found', {
      details: { field: 'path.name', seen: describeSeen(name), accepted: NAME_RULE },
    })
  return { name }
}

type RenameInput = { readonly name?: string | null; readonly slug?: string | null }

function parseRename({ name, slug }: RenameInput): { readonly name?: string; readonly slug?: string } {
  if (typeof name === 'string' && !isName(name)) refuseField('name', name, NAME_RULE)
  if (typeof slug === 'string' && !isSlug(slug)) refuseField('slug', slug, SLUG_RULE)
  return { ...(typeof name === 'string' ? { name } : {}), ...(typeof slug === 'string' ? { slug } : {}) }
}

/** Contract decisions, "`wait_timeout` without `wait_for`". */
function parseWaitMs(query: { readonly wait_for?: 'running'; readonly wait_timeout?: number }): number | null {
  if (query.wait_for !== undefined) return (query.wait_timeout ?? WAIT_DEFAULT_SECS) * 1000
  if (query.wait_timeout !== undefined)
    refuseField('query.wait_timeout', query.wait_timeout, 'wait_for=running beside wait_timeout')
  return null
}

function startOptions(
  query: Parameters<typeof parseWaitMs>[0],
  { signal, once, ifMatch }: AuthenticatedRequest,
): StartOptions {
  const waitMs = parseWaitMs(query)
  return { waitMs, signal: waitMs === null ? null : signal(), once, ifMatch }
}

type WaitQuery = { readonly for?: string; readonly timeout?: number; readonly run?: string }

function parseWait(query: WaitQuery): WaitInput {
  const statuses = (query.for ?? 'terminal').split(',')
  const isWanted = (status: SandboxStatus): boolean =>
    statuses.includes(status) || (isTerminal(status) && statuses.includes('terminal'))
  return {
    statuses: SANDBOX_STATUSES.filter(isWanted),
    run_id: query.run === undefined ? null : asId<RunId>(query.run.toLowerCase()),
    waitMs: (query.timeout ?? WAIT_DEFAULT_SECS) * 1000,
  }
}

async function deferWait(useCases: ExplainWaiting, begun: Promise<PreparedWait>): Promise<DeferredReply> {
  const { start } = await begun
  return {
    start: (onEnd) =>
      start((end) => {
        if (end instanceof Error || end.status_reason !== WAITS_FOR_CAPACITY)
          onEnd(end instanceof Error ? end : renderTagged(end))
        else renderWithDetails(useCases, Promise.resolve(end)).then(onEnd, onEnd)
      }),
  }
}

type ExplainWaiting = Pick<UseCases, 'explainWaiting'>
const WAITS_FOR_CAPACITY: StatusReason = 'insufficient_capacity'

/** A sandbox by itself: one that waits for a worker with room is told why, which is no part of what its tag stands for. */
async function renderWithDetails(useCases: ExplainWaiting, asked: Promise<Sandbox>): Promise<TaggedReply> {
  const sandbox = await asked
  const reply = renderTagged(sandbox)
  const details = sandbox.status_reason === WAITS_FOR_CAPACITY ? await useCases.explainWaiting(sandbox.id) : null
  return details === null
    ? reply
    : { ...reply, json: appendMembers(reply.json, { status_details: JSON.stringify(details) }) }
}

function renderTagged(sandbox: Sandbox): TaggedReply {
  return taggedReply(renderSandbox(sandbox))
}

async function confirmDeletion(deletion: Promise<void>): Promise<string> {
  await deletion
  return messageReply('sandbox deleted')
}
