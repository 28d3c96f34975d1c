import { OPERATIONS } from '../../contract/operations.ts'
import type { SANDBOX_BY_NAME_OPERATIONS } from '../../contract/sandboxes/operations-by-name.ts'
import type { SANDBOX_OPERATIONS } from '../../contract/sandboxes/operations.ts'
import { listSandboxes, getSandbox, type SandboxRef } from '../../control/sandboxes/read-sandboxes.ts'
import { startSandbox, type StartOptions } from '../../control/sandboxes/start-sandbox.ts'
import { waitForSandbox, type PreparedWait, type WaitInput } from '../../control/sandboxes/wait-for-sandbox.ts'
import { createSandbox } from '../../control/sandboxes/create-sandbox.ts'
import { renameSandbox } from '../../control/sandboxes/rename-sandbox.ts'
import { deleteSandbox } from '../../control/sandboxes/delete-sandbox.ts'
import { stopSandbox } from '../../control/sandboxes/stop-sandbox.ts'
import { explainWaiting } from '../../control/workers/explain-waiting.ts'
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
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import {
  messageReply, refuseField, renderPage, taggedReply, type Handler, type HandlerFactory, type DeferredReply,
  type AuthenticatedRequest, type TaggedReply, type CallUseCase } from './handler.ts' // prettier-ignore

type Handled = Exclude<keyof typeof SANDBOX_OPERATIONS, 'open_agent'> | keyof typeof SANDBOX_BY_NAME_OPERATIONS

/** What the operations on sandboxes ask of the use cases. */
export function makeSandboxHandlers(call: CallUseCase, handler: HandlerFactory): Record<Handled, Handler> {
  return {
    create_sandbox: handler(OPERATIONS.create_sandbox, async ({ query, body }, { caller, signal, attempt }) => {
      const result = normalizeSpec(body)
      if ('refusal' in result) throw refusalProblem(result.refusal)
      const start = query.start ?? false
      if (!start && query.wait_for !== undefined)
        refuseField('query.wait_for', query.wait_for, 'start=true beside wait_for')
      const waitMs = parseWaitMs(query)
      return renderWithDetails(
        call,
        call(createSandbox, caller, {
          ...result.normalized,
          start,
          waitMs,
          signal: waitMs === null ? null : signal(),
          attempt,
        }),
      )
    }),
    list_sandboxes: handler(OPERATIONS.list_sandboxes, async ({ query }, { caller }) => {
      const filter = parseLabelFilter(query.labels ?? '{}')
      if ('refusal' in filter) throw refusalProblem(filter.refusal)
      const { cursor = null, limit = PAGE_DEFAULT } = query
      return renderPage(await call(listSandboxes, caller, { cursor, limit, labels: filter.labels }), renderSandbox)
    }),
    get_sandbox: handler(OPERATIONS.get_sandbox, ({ params }, { caller }) =>
      renderWithDetails(call, call(getSandbox, caller, refById(params))),
    ),
    get_sandbox_by_name: handler(OPERATIONS.get_sandbox_by_name, ({ params }, { caller }) =>
      renderWithDetails(call, call(getSandbox, caller, refByName(params))),
    ),
    wait_for_sandbox: handler(OPERATIONS.wait_for_sandbox, ({ params, query }, raw) =>
      deferWait(call, call(waitForSandbox, raw.caller, refById(params), parseWait(query))),
    ),
    wait_for_sandbox_by_name: handler(OPERATIONS.wait_for_sandbox_by_name, ({ params, query }, raw) =>
      deferWait(call, call(waitForSandbox, raw.caller, refByName(params), parseWait(query))),
    ),
    update_sandbox: handler(OPERATIONS.update_sandbox, ({ params, body }, { caller, ifMatch }) =>
      renderWithDetails(call, call(renameSandbox, caller, refById(params), { ...parseRename(body), ifMatch })),
    ),
    update_sandbox_by_name: handler(OPERATIONS.update_sandbox_by_name, ({ params, body }, { caller, ifMatch }) =>
      renderWithDetails(call, call(renameSandbox, caller, refByName(params), { ...parseRename(body), ifMatch })),
    ),
    delete_sandbox: handler(OPERATIONS.delete_sandbox, ({ params }, { caller, ifMatch }) =>
      confirmDeletion(call(deleteSandbox, caller, refById(params), ifMatch)),
    ),
    delete_sandbox_by_name: handler(OPERATIONS.delete_sandbox_by_name, ({ params }, { caller, ifMatch }) =>
      confirmDeletion(call(deleteSandbox, caller, refByName(params), ifMatch)),
    ),
    start_sandbox: handler(OPERATIONS.start_sandbox, ({ params, query }, raw) =>
      renderWithDetails(call, call(startSandbox, raw.caller, refById(params), startOptions(query, raw))),
    ),
    start_sandbox_by_name: handler(OPERATIONS.start_sandbox_by_name, ({ params, query }, raw) =>
      renderWithDetails(call, call(startSandbox, raw.caller, refByName(params), startOptions(query, raw))),
    ),
    stop_sandbox: handler(OPERATIONS.stop_sandbox, ({ params }, { caller, attempt, ifMatch }) =>
      renderWithDetails(call, call(stopSandbox, caller, refById(params), { attempt, ifMatch })),
    ),
    stop_sandbox_by_name: handler(OPERATIONS.stop_sandbox_by_name, ({ params }, { caller, attempt, ifMatch }) =>
      renderWithDetails(call, call(stopSandbox, caller, refByName(params), { attempt, ifMatch })),
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
  { signal, attempt, ifMatch }: AuthenticatedRequest,
): StartOptions {
  const waitMs = parseWaitMs(query)
  return { waitMs, signal: waitMs === null ? null : signal(), attempt, ifMatch }
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

async function deferWait(call: CallUseCase, begun: Promise<PreparedWait>): Promise<DeferredReply> {
  const { start } = await begun
  return {
    start: (onEnd) =>
      start((end) => {
        if (end instanceof Error || end.status_reason !== WAITS_FOR_CAPACITY)
          onEnd(end instanceof Error ? end : renderTagged(end))
        else renderWithDetails(call, Promise.resolve(end)).then(onEnd, onEnd)
      }),
  }
}

const WAITS_FOR_CAPACITY: StatusReason = 'insufficient_capacity'

/** A sandbox by itself: one that waits for a worker with room is told why, which is no part of what its tag stands for. */
async function renderWithDetails(call: CallUseCase, asked: Promise<Sandbox>): Promise<TaggedReply> {
  const sandbox = await asked
  const reply = renderTagged(sandbox)
  const details = sandbox.status_reason === WAITS_FOR_CAPACITY ? await call(explainWaiting, sandbox.id) : null
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
