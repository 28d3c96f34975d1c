import { signal } from '@preact/signals'
import type { ErrorBody, Page } from './types.ts'

/** The header that proves that a change comes from this page, and its value, which the session tells. */
const CSRF_HEADER = 'x-sandyard-csrf'
export const csrfToken = signal<string | null>(null)
/** Counts the replies that say that there is no session. */
export const refusedSessions = signal(0)

/** No request of this page waits longer, so that no spinner turns without an end. */
const LIMIT_MS = 30_000

/** A refusal of the API, in the API's words. */
export class ApiError extends Error {
  readonly status: number
  readonly code: string
  /** The field that was refused, such as `resources.memory_mib`, and what would be accepted. */
  readonly details: Readonly<Record<string, unknown>>
  readonly requestId: string | null
  constructor(status: number, { code, message, details }: ErrorBody['error'], requestId: string | null) {
    super(message)
    this.status = status
    this.code = code
    this.details = details ?? {}
    this.requestId = requestId
  }
}

type Query = Readonly<Record<string, string | number | boolean | null | undefined>>
export type Request = {
  readonly query?: Query
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal | undefined
  readonly limitMs?: number
}

/** A path of the API with its parameters encoded: `at`/v1/sandboxes/${id}``. */
export function at(parts: TemplateStringsArray, ...values: readonly string[]): string {
  return String.raw({ raw: parts }, ...values.map((value) => encodeURIComponent(value)))
}

export const get = <T>(path: string, request: Request = {}): Promise<T> => json<T>('GET', path, request)
export const post = <T>(path: string, body?: unknown, request: Request = {}): Promise<T> =>
  json<T>('POST', path, { body: body ?? {}, ...request })
export const patch = <T>(path: string, body: unknown, request: Request = {}): Promise<T> =>
  json<T>('PATCH', path, { body, ...request })
export const remove = <T>(path: string, request: Request = {}): Promise<T> => json<T>('DELETE', path, request)

async function json<T>(method: string, path: string, request: Request): Promise<T> {
  return (await (await send(method, path, request)).json()) as T // the shapes are those of the contract, which the server checks
}

/** Sends a request. Rejects with `ApiError` if the API refuses it, and with a sentence if nothing answers. */
export async function send(method: string, path: string, request: Request = {}): Promise<Response> {
  const { query, body, headers, signal: cancel, limitMs = LIMIT_MS } = request
  const limit = AbortSignal.timeout(limitMs)
  const isBytes = body instanceof Blob
  const response = await fetch(withQuery(path, query), {
    method,
    headers: {
      ...headers,
      ...(method === 'GET' || csrfToken.value === null ? {} : { [CSRF_HEADER]: csrfToken.value }),
      ...(body === undefined || isBytes ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: isBytes ? body : JSON.stringify(body) }),
    signal: cancel === undefined ? limit : AbortSignal.any([cancel, limit]),
  }).catch((error: unknown) => {
    if (cancel?.aborted === true) throw error
    throw new Error(
      limit.aborted
        ? 'The server did not answer in time. Try again.'
        : 'The server can not be reached. Check that it runs, and try again.',
      { cause: error },
    )
  })
  if (response.ok) return response
  if (response.status === 401 && path.startsWith('/v1/')) refusedSessions.value += 1
  throw await errorOf(response)
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text()
  const id = response.headers.get('x-request-id')
  try {
    const { error } = JSON.parse(text) as ErrorBody
    return new ApiError(response.status, error, id)
  } catch {
    const message = `The server answered ${String(response.status)}.`
    return new ApiError(response.status, { code: 'unknown', message, details: null }, id)
  }
}

export function withQuery(path: string, query: Query = {}): string {
  const set = Object.entries(query).flatMap(([name, value]) =>
    value === null || value === undefined || value === '' ? [] : [[name, String(value)]],
  )
  return set.length === 0 ? path : `${path}?${new URLSearchParams(set).toString()}`
}

/** The size of a page of a list: the largest that the API gives. */
const PAGE_ITEMS = 100

/** The pages of a list, each as it arrives. Ends after `pagesMax` pages. */
export async function* pagesOf<Item>(
  path: string,
  { query, pagesMax = 10, signal: cancel }: { query?: Query; pagesMax?: number; signal?: AbortSignal | undefined } = {},
): AsyncGenerator<Page<Item>> {
  let cursor: string | null = null
  for (let count = 0; count < pagesMax; count += 1) {
    const page: Page<Item> = await get(path, { query: { limit: PAGE_ITEMS, ...query, cursor }, signal: cancel })
    yield page
    cursor = page.next_cursor
    if (cursor === null) return
  }
}

/** All items of a list that is short: at most 1,000. */
export async function listAll<Item>(path: string, options: Parameters<typeof pagesOf>[1] = {}): Promise<Item[]> {
  const all: Item[] = []
  for await (const page of pagesOf<Item>(path, options)) all.push(...page.data)
  return all
}
