import { OPERATIONS } from '../../contract/operations.ts'
import type { SANDBOX_BY_NAME_OPERATIONS, SANDBOX_OPERATIONS } from '../../contract/sandboxes/operations.ts'
import { listSandboxes, getSandbox, type SandboxRef } from '../../control/sandboxes/read-sandboxes.ts'
import { startSandbox, type StartOptions } from '../../control/sandboxes/start-sandbox.ts'
import { waitForSandbox, type PreparedWait, type WaitInput } from '../../control/sandboxes/waits/wait-for-sandbox.ts'
import { findSnapshotToRestore } from '../../control/snapshots/read-snapshots.ts'
import { createSandbox } from '../../control/sandboxes/create-sandbox.ts'
import type { Conditions } from '../../control/sandboxes/if-match.ts'
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
import { WAIT_DEFAULT_SECS } from '../../domain/requests/request-bounds.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../../domain/names.ts'
import { normalizeSpec, snapshotNameOf } from '../../domain/spec/normalize-spec.ts'
import { restoring } from '../../domain/snapshots/fork.ts'
import { appendMembers } from '../../domain/json-text.ts'
import { LARGE_TEXT, nextTurn } from '../../lib/turns/next-turn.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import { renderSandbox, type Sandbox } from '../../domain/sandboxes/sandbox.ts'
import {
  largeTaggedReply, messageReply, pageInput, refuseField, renderPage, taggedReply, type Handler, type HandlerFactory, type DeferredReply,
  type AuthenticatedRequest, type TaggedReply } from './handler.ts' // prettier-ignore
import type { CallUseCase } from '../requests/call-use-case.ts'

type Handled = Exclude<keyof typeof SANDBOX_OPERATIONS, 'open_agent'> | keyof typeof SANDBOX_BY_NAME_OPERATIONS

/** Creates the handlers of sandboxes, by id and by name. */
export function makeSandboxHandlers(call: CallUseCase, handler: HandlerFactory): Record<Handled, Handler> {
  return {
    create_sandbox: handler(
      OPERATIONS.create_sandbox,
      async ({ query, body }, { caller, signal, attempt, traceParent }) => {
        const snapshotName = snapshotNameOf(body)
        const snapshot = snapshotName === null ? null : await call(findSnapshotToRestore, caller, snapshotName)
        const result = normalizeSpec(body, snapshot)
        if ('refusal' in result) throw refusalProblem(result.refusal)
        const start = query.start ?? false
        if (!start && query.wait_for !== undefined)
          refuseField('query.wait_for', query.wait_for, 'wait_for only with start=true')
        const waitMs = parseWaitMs(query)
        const onTimeout = query.on_timeout ?? 'keep'
        if (waitMs === null && query.on_timeout !== undefined)
          refuseField('query.on_timeout', onTimeout, 'on_timeout only with wait_for=running')
        return renderWithDetails(
          call,
          call(createSandbox, caller, {
            ...result.normalized,
            ...(snapshot === null ? {} : restoring(result.normalized.spec, snapshot)),
            start,
            waitMs,
            onTimeout,
            signal: waitMs === null ? null : signal(),
            attempt,
            traceParent,
          }),
        )
      },
    ),
    list_sandboxes: handler(OPERATIONS.list_sandboxes, async ({ query }, { caller, requireReader }) => {
      const filter = parseLabelFilter(query.labels ?? '{}')
      if ('refusal' in filter) throw refusalProblem(filter.refusal)
      const input = { ...pageInput(query), labels: filter.labels, beforeRead: requireReader }
      return renderPage(await call(listSandboxes, caller, input), renderSandbox)
    }),
    get_sandbox: handler(OPERATIONS.get_sandbox, ({ params }, { caller, requireReader }) =>
      renderWithDetails(call, call(getSandbox, caller, refById(params), requireReader), requireReader),
    ),
    get_sandbox_by_name: handler(OPERATIONS.get_sandbox_by_name, ({ params }, { caller, requireReader }) =>
      renderWithDetails(call, call(getSandbox, caller, refByName(params), requireReader), requireReader),
    ),
    wait_for_sandbox: handler(OPERATIONS.wait_for_sandbox, ({ params, query }, raw) =>
      deferWait(call, raw, call(waitForSandbox, raw.caller, refById(params), parseWait(query))),
    ),
    wait_for_sandbox_by_name: handler(OPERATIONS.wait_for_sandbox_by_name, ({ params, query }, raw) =>
      deferWait(call, raw, call(waitForSandbox, raw.caller, refByName(params), parseWait(query))),
    ),
    update_sandbox: handler(OPERATIONS.update_sandbox, ({ params, body }, raw) =>
      renderWithDetails(
        call,
        call(renameSandbox, raw.caller, refById(params), { ...parseRename(body), ...conditionsOf(raw) }),
      ),
    ),
    update_sandbox_by_name: handler(OPERATIONS.update_sandbox_by_name, ({ params, body }, raw) =>
      renderWithDetails(
        call,
        call(renameSandbox, raw.caller, refByName(params), { ...parseRename(body), ...conditionsOf(raw) }),
      ),
    ),
    delete_sandbox: handler(OPERATIONS.delete_sandbox, ({ params }, raw) =>
      confirmDeletion(call(deleteSandbox, raw.caller, refById(params), conditionsOf(raw))),
    ),
    delete_sandbox_by_name: handler(OPERATIONS.delete_sandbox_by_name, ({ params }, raw) =>
      confirmDeletion(call(deleteSandbox, raw.caller, refByName(params), conditionsOf(raw))),
    ),
    start_sandbox: handler(OPERATIONS.start_sandbox, ({ params, query }, raw) =>
      renderWithDetails(call, call(startSandbox, raw.caller, refById(params), startOptions(query, raw))),
    ),
    start_sandbox_by_name: handler(OPERATIONS.start_sandbox_by_name, ({ params, query }, raw) =>
      renderWithDetails(call, call(startSandbox, raw.caller, refByName(params), startOptions(query, raw))),
    ),
    stop_sandbox: handler(OPERATIONS.stop_sandbox, ({ params }, raw) =>
      renderWithDetails(
        call,
        call(stopSandbox, raw.caller, refById(params), { attempt: raw.attempt, ...conditionsOf(raw) }),
      ),
    ),
    stop_sandbox_by_name: handler(OPERATIONS.stop_sandbox_by_name, ({ params }, raw) =>
      renderWithDetails(
        call,
        call(stopSandbox, raw.caller, refByName(params), { attempt: raw.attempt, ...conditionsOf(raw) }),
      ),
    ),
  }
}

function refById({ sandbox_id }: { readonly sandbox_id: string }): SandboxRef {
  return { id: asId<SandboxId>(sandbox_id.toLowerCase()) }
}

/** Refers to a sandbox by name. A text that isn't a valid name can't match a sandbox, so it gets 404 and not 400. */
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

/**
 * How long to wait until the sandbox runs. Null without `wait_for`. `wait_timeout` without `wait_for` is refused,
 * because it would have no effect.
 */
function parseWaitMs(query: { readonly wait_for?: 'running'; readonly wait_timeout?: number }): number | null {
  if (query.wait_for !== undefined) return (query.wait_timeout ?? WAIT_DEFAULT_SECS) * 1000
  if (query.wait_timeout !== undefined)
    refuseField('query.wait_timeout', query.wait_timeout, 'wait_timeout only with wait_for=running')
  return null
}

function startOptions(query: Parameters<typeof parseWaitMs>[0], raw: AuthenticatedRequest): StartOptions {
  const waitMs = parseWaitMs(query)
  const { attempt, traceParent, countStoredBody: onStart } = raw
  return { attempt, traceParent, onStart, ...conditionsOf(raw), waitMs, signal: waitMs === null ? null : raw.signal() }
}

function conditionsOf({ ifMatch, takeStoredBody }: AuthenticatedRequest): Conditions {
  return { ifMatch, beforeSpec: takeStoredBody }
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

async function deferWait(
  call: CallUseCase,
  { requireReader }: AuthenticatedRequest,
  prepared: Promise<PreparedWait>,
): Promise<DeferredReply> {
  const { start } = await prepared
  return {
    start: (onEnd) =>
      start((result) => {
        if (result instanceof Error) onEnd(result)
        else if (result.status_reason !== WAITS_FOR_CAPACITY && !isLarge(result)) onEnd(renderTagged(result))
        else renderWithDetails(call, Promise.resolve(result), requireReader).then(onEnd, onEnd)
      }, requireReader),
  }
}

const WAITS_FOR_CAPACITY: StatusReason = 'insufficient_capacity'

/**
 * Renders the reply of one sandbox. While the sandbox waits for capacity, the reply also contains the reason in
 * `status_details`. The ETag does not cover `status_details`.
 */
async function renderWithDetails(
  call: CallUseCase,
  pending: Promise<Sandbox>,
  requireReader?: () => void,
): Promise<TaggedReply> {
  const sandbox = await pending
  const reply = isLarge(sandbox) ? await renderInTurn(sandbox, requireReader) : renderTagged(sandbox)
  const details = sandbox.status_reason === WAITS_FOR_CAPACITY ? await call(explainWaiting, sandbox.id) : null
  return details === null
    ? reply
    : { tag: reply.tag, json: appendMembers(reply.json, { status_details: JSON.stringify(details) }) }
}

function isLarge({ spec_json }: Sandbox): boolean {
  return spec_json.length > LARGE_TEXT
}

/**
 * Renders a large sandbox in a turn of its own. Hundreds of waits for one sandbox end at once, and rendering 4 MiB takes some 10 ms. If
 * nobody would read the reply, it is not rendered.
 */
async function renderInTurn(sandbox: Sandbox, requireReader?: () => void): Promise<TaggedReply> {
  await nextTurn()
  requireReader?.()
  return largeTaggedReply(renderSandbox(sandbox))
}

function renderTagged(sandbox: Sandbox): TaggedReply {
  return taggedReply(renderSandbox(sandbox))
}

async function confirmDeletion(deletion: Promise<void>): Promise<string> {
  await deletion
  return messageReply('sandbox deleted')
}
