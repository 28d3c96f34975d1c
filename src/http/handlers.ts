import type { TSchema } from 'typebox'
import { NoBody, type Operation, type RequestOf } from '../contract/operation.ts'
import { OPERATIONS, type OperationId } from '../contract/operations.ts'
import type { Caller } from '../domain/caller.ts'
import { asId, type EventId, type SandboxId } from '../domain/ids.ts'
import { parseLabelFilter } from '../domain/labels.ts'
import { PAGE_DEFAULT, WAIT_DEFAULT_SECS } from '../domain/limits.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../domain/names.ts'
import { normalizeSpec } from '../domain/normalize-spec.ts'
import { Problem } from '../domain/problem.ts'
import { describeSeen, refusalProblem } from '../domain/refusal.ts'
import { renderSandbox, type Sandbox } from '../domain/sandbox.ts'
import { parseQuery } from './query.ts'
import type { SandboxRef, UseCases } from './use-cases.ts'
import type { ParserMaker } from './validate.ts'

/** A request as the server hands it over: authenticated, its body parsed as JSON, nothing else looked at. */
export type RawRequest = {
  readonly caller: Caller
  readonly url: string
  readonly params: unknown
  readonly body: unknown
  /** Aborted when the client leaves. A function, because most requests never ask. */
  readonly signal: () => AbortSignal
}

/** One operation ready to serve: checks the request by the operation's schemas, and answers JSON text. */
export type Handler = (request: RawRequest) => Promise<string>

/** The operations that need a key and answer JSON; the compiler asks for each of them. */
export type HandledOperation = Exclude<
  OperationId,
  'open_agent' | 'get_health' | 'get_readiness' | 'get_metrics' | 'get_document'
>

const noBody: TSchema = NoBody

/** The table of handlers: what each operation asks of the use cases. */
export function makeHandlers(useCases: UseCases, makeParser: ParserMaker): Record<HandledOperation, Handler> {
  const handler = <Params extends TSchema, Query extends TSchema, Body extends TSchema>(
    operation: Operation<Params, Query, Body>,
    serve: (request: RequestOf<Operation<Params, Query, Body>>, raw: RawRequest) => Promise<string>,
  ): Handler => {
    const parseParams = makeParser(operation.params, 'path')
    const parseOfQuery = makeParser(operation.query, 'query')
    const parseBody = makeParser(operation.body, 'body')
    const takesBody: boolean = operation.body !== noBody
    return (raw) =>
      serve(
        {
          params: parseParams(raw.params),
          query: parseQuery(raw.url, operation.query, parseOfQuery),
          body: parseBody(takesBody ? raw.body : (raw.body ?? {})),
        },
        raw,
      )
  }
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
    get_org: handler(OPERATIONS.get_org, async (_request, { caller }) => JSON.stringify(await useCases.getOrg(caller))),
    list_events: handler(OPERATIONS.list_events, async ({ query }, { caller }) => {
      const { event_type = null, cursor = null, limit = PAGE_DEFAULT } = query
      const input = { event_type, since: instant(query.since), until: instant(query.until), cursor, limit }
      return renderPage(await useCases.listEvents(caller, input), (event) => JSON.stringify(event))
    }),
    get_event: handler(OPERATIONS.get_event, async ({ params }, { caller }) =>
      JSON.stringify(await useCases.getEvent(caller, asId<EventId>(params.event_id.toLowerCase()))),
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

function instant(text: string | undefined): Date | null {
  return text === undefined ? null : new Date(text)
}

async function rendered(sandbox: Promise<Sandbox>): Promise<string> {
  return renderSandbox(await sandbox)
}

async function deleted(deletion: Promise<void>): Promise<string> {
  await deletion
  return '{"message":"sandbox deleted"}'
}

type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

/** The envelope of a page around items that are JSON text already. */
function renderPage<Item>({ items, nextCursor }: Page<Item>, render: (item: Item) => string): string {
  return `{"data":[${items.map(render).join(',')}],"has_more":${String(nextCursor !== null)},"next_cursor":${JSON.stringify(nextCursor)}}`
}

function refuse(field: string, seen: unknown, accepted: string): never {
  throw refusalProblem({ code: 'invalid_request', field, seen: describeSeen(seen), accepted })
}
