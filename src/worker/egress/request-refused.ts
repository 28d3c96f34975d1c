import type { ViolationAction } from '../../domain/spec/secrets.ts'

/** A placeholder that was found where its secret must not go. It never has the value. */
export type Violation = {
  readonly action: ViolationAction['type']
  readonly env_var: string
  readonly placeholder: string
  readonly location: 'request_line' | 'header' | 'body' | 'trailer' | 'opaque'
  readonly form: 'raw' | 'percent_encoded' | 'unicode_escaped' | 'basic'
}

/** The request during which a connection was cut. The path is without its query. */
export type RequestContext = {
  readonly method: string | null
  readonly host: string | null
  readonly path: string | null
}

const NO_REQUEST: RequestContext = { method: null, host: null, path: null }

/** A request that must not be forwarded. `violation` is null if the request is malformed or for another host. */
export class RequestRefused extends Error {
  readonly violation: Violation | null
  /** Whether the network policy refuses the host of the request. */
  readonly isByPolicy: boolean
  readonly context: RequestContext

  constructor(
    message: string,
    { violation = null, isByPolicy = false, context = NO_REQUEST }: Partial<RequestRefused> = {},
  ) {
    super(message)
    this.name = 'RequestRefused'
    this.violation = violation
    this.isByPolicy = isByPolicy
    this.context = context
  }
}

/** The reply to the first request of a connection, if it is refused. */
export function renderDenial({ isByPolicy, context }: Pick<RequestRefused, 'isByPolicy' | 'context'>): Buffer {
  const kind = isByPolicy ? 'network' : 'secret'
  const message = `Request blocked by ${kind} policy.`
  const body = JSON.stringify({ code: `${kind}_policy_denied`, domain: context.host, message })
  const head = ['HTTP/1.1 403 Forbidden', 'Content-Type: application/json', 'Connection: close']
  return Buffer.from([...head, `Content-Length: ${String(Buffer.byteLength(body))}`, '', body].join('\r\n'))
}
