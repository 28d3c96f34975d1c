import { OPERATIONS, type OperationId } from '../../src/contract/operations.ts'

export type RequestParts = {
  readonly params?: Readonly<Record<string, string>>
  readonly query?: Readonly<Record<string, string>>
  /** An object to be sent as JSON, or the bytes of the body. */
  readonly body?: object | Buffer
  readonly headers?: Readonly<Record<string, string>>
  /** Aborts the request. */
  readonly signal?: AbortSignal
}

/** A reply. `code` and `message` are empty unless it is a refusal. */
export type ProblemReply = Reply & { readonly code: string; readonly message: string }

export type Reply = { readonly status: number; readonly headers: Headers; readonly text: string }

/** A request of an operation, with or without a key. */
export type Request = { readonly id: OperationId; readonly key: string | null; readonly asking: RequestParts }

/** Sends a request over HTTP. Resolves with the reply. */
export async function exchange(url: string, { id, key, asking }: Request): Promise<Reply> {
  const { method, path } = OPERATIONS[id]
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(asking.params?.[name] ?? ''))
  const query = new URLSearchParams(asking.query)
  const { body, signal } = asking
  const response = await fetch(`${url}${filled}${query.size === 0 ? '' : `?${query.toString()}`}`, {
    method,
    headers: {
      ...(key === null ? {} : { authorization: `Bearer ${key}` }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...asking.headers,
    },
    ...(signal === undefined ? {} : { signal }),
    ...(body === undefined ? {} : { body: Buffer.isBuffer(body) ? new Uint8Array(body) : JSON.stringify(body) }),
  })
  return { status: response.status, headers: response.headers, text: await response.text() }
}

/** As `exchange`, with the code and message of a refusal. Asserts nothing. */
export async function send(url: string, request: Request): Promise<ProblemReply> {
  const reply = await exchange(url, request)
  const { code = '', message = '' } = reply.status < 400 ? {} : JSON.parse(reply.text).error
  return { ...reply, code, message }
}
