import { OPERATIONS } from '../../contract/operations.ts'
import type { SANDBOX_BY_NAME_OPERATIONS } from '../../contract/sandboxes/operations-by-name.ts'
import type { SANDBOX_OPERATIONS } from '../../contract/sandboxes/operations.ts'
import type { SandboxRef } from '../../control/sandboxes/read-sandboxes.ts'
import type { StartOptions } from '../../control/sandboxes/start-sandbox.ts'
import type { BegunWait, WaitFor } from '../../control/sandboxes/wait-for-run.ts'
import { asId, type RunId, type SandboxId } from '../../domain/ids.ts'
import {
  isTerminal,
  SANDBOX_STATUSES,
  type SandboxStatus,
  type StatusReason,
} from '../../domain/sandboxes/lifecycle.ts'
import { parseLabelFilter } from '../../domain/sandboxes/labels.ts'
import { PAGE_DEFAULT, WAIT_DEFAULT_SECS } from '../../domain/orgs/limits.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../../domain/sandboxes/names.ts'
import { normalizeSpec } from '../../domain/spec/normalize-spec.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeen, refusalProblem } from '../../domain/spec/refusal.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import {
  refuse, renderPage, tagged, type Handler, type HandlerMaker, type LaterReply,
  type RawRequest, type TaggedReply,
} from './handler.ts' // prettier-ignore
import type { UseCases } from '../use-cases.ts'

type Handled = Exclude<keyof typeof SANDBOX_OPERATIONS, 'open_agent'> | keyof typeof SANDBOX_BY_NAME_OPERATIONS

/** What the operations on sandboxes ask of the use cases. */
export function makeSandboxHandlers(useCases: UseCases, handler: HandlerMaker): Record<Handled, Handler> {
  return {
    create_sandbox: handler(OPERATIONS.create_sandbox, async ({ query, body }, { caller, signal, once, lasts }) => {
      const result = normalizeSpec(body)
      if ('refusal' in result) throw refusalProblem(result.refusal)
      const start = query.start ?? false
      if (!start && query.wait_for !== undefined) refuse('query.wait_for', query.wait_for, 'start=true beside wait_for')
      const waitMs = waitMsOf(query)
      if (waitMs !== null) lasts()
      return rendered(
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
      rendered(useCases, useCases.getSandbox(caller, byId(params))),
    ),
    get_sandbox_by_name: handler(OPERATIONS.get_sandbox_by_name, ({ params }, { caller }) =>
      rendered(useCases, useCases.getSandbox(caller, byName(params))),
    ),
    wait_for_sandbox: handler(OPERATIONS.wait_for_sandbox, ({ params, query }, raw) =>
      later(useCases, useCases.waitForSandbox(raw.caller, byId(params), waitOf(query))),
    ),
    wait_for_sandbox_by_name: handler(OPERATIONS.wait_for_sandbox_by_name, ({ params, query }, raw) =>
      later(useCases, useCases.waitForSandbox(raw.caller, byName(params), waitOf(query))),
    ),
    update_sandbox: handler(OPERATIONS.update_sandbox, ({ params, body }, { caller, ifMatch }) =>
      rendered(useCases, useCases.renameSandbox(caller, byId(params), { ...changeOf(body), ifMatch })),
    ),
    update_sandbox_by_name: handler(OPERATIONS.update_sandbox_by_name, ({ params, body }, { caller, ifMatch }) =>
      rendered(useCases, useCases.renameSandbox(caller, byName(params), { ...changeOf(body), ifMatch })),
    ),
    delete_sandbox: handler(OPERATIONS.delete_sandbox, ({ params }, { caller, ifMatch }) =>
      deleted(useCases.deleteSandbox(caller, byId(params), ifMatch)),
    ),
    delete_sandbox_by_name: handler(OPERATIONS.delete_sandbox_by_name, ({ params }, { caller, ifMatch }) =>
      deleted(useCases.deleteSandbox(caller, byName(params), ifMatch)),
    ),
    start_sandbox: handler(OPERATIONS.start_sandbox, ({ params, query }, raw) =>
      rendered(useCases, useCases.startSandbox(raw.caller, byId(params), startOf(query, raw))),
    ),
    start_sandbox_by_name: handler(OPERATIONS.start_sandbox_by_name, ({ params, query }, raw) =>
      rendered(useCases, useCases.startSandbox(raw.caller, byName(params), startOf(query, raw))),
    ),
    stop_sandbox: handler(OPERATIONS.stop_sandbox, ({ params }, { caller, once, ifMatch }) =>
      rendered(useCases, useCases.stopSandbox(caller, byId(params), { once, ifMatch })),
    ),
    stop_sandbox_by_name: handler(OPERATIONS.stop_sandbox_by_name, ({ params }, { caller, once, ifMatch }) =>
      rendered(useCases, useCases.stopSandbox(caller, byName(params), { once, ifMatch })),
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

function startOf(query: Parameters<typeof waitMsOf>[0], { signal, lasts, once, ifMatch }: RawRequest): StartOptions {
  const waitMs = waitMsOf(query)
  if (waitMs !== null) lasts()
  return { waitMs, signal: waitMs === null ? null : signal(), once, ifMatch }
}

type WaitQuery = { readonly for?: string; readonly timeout?: number; readonly run?: string }

function waitOf(query: WaitQuery): WaitFor {
  const words = (query.for ?? 'terminal').split(',')
  const isWanted = (status: SandboxStatus): boolean =>
    words.includes(status) || (isTerminal(status) && words.includes('terminal'))
  return {
    statuses: SANDBOX_STATUSES.filter(isWanted),
    run_id: query.run === undefined ? null : asId<RunId>(query.run.toLowerCase()),
    waitMs: (query.timeout ?? WAIT_DEFAULT_SECS) * 1000,
  }
}

async function later(useCases: Explain, begun: Promise<BegunWait>): Promise<LaterReply> {
  const { start } = await begun
  return {
    start: (onEnd) =>
      start((end) => {
        if (end instanceof Error || end.status_reason !== WAITS) onEnd(end instanceof Error ? end : shown(end))
        else rendered(useCases, Promise.resolve(end)).then(onEnd, onEnd)
      }),
  }
}

type Explain = Pick<UseCases, 'explainWaiting'>
const WAITS: StatusReason = 'insufficient_capacity'

/** A sandbox by itself: one that waits for a worker with room is told why, which is no part of what its tag stands for. */
async function rendered(useCases: Explain, asked: Promise<Sandbox>): Promise<TaggedReply> {
  const sandbox = await asked
  const reply = shown(sandbox)
  const details = sandbox.status_reason === WAITS ? await useCases.explainWaiting(sandbox.id) : null
  return details === null ? reply : { ...reply, json: withDetails(reply.json, details) }
}

function shown(sandbox: Sandbox): TaggedReply {
  return tagged(renderSandbox(sandbox))
}

/** Puts what is told of a wait into the text of a sandbox, which is an object with keys. */
function withDetails(json: string, details: object): string {
  return `${json.slice(0, -1)},"status_details":${JSON.stringify(details)}}`
}

async function deleted(deletion: Promise<void>): Promise<string> {
  await deletion
  return '{"message":"sandbox deleted"}'
}
