/** An answer of the API server other than success. `reason` is the one of its Status, such as `AlreadyExists`. */
export class ApiError extends Error {
  readonly status: number
  readonly reason: string
  constructor(status: number, reason: string, message: string) {
    super(message)
    this.status = status
    this.reason = reason
  }
}

/** Whether an error is an answer of the API server with one of these statuses. */
export function isApiError(error: unknown, ...statuses: readonly number[]): error is ApiError {
  return error instanceof ApiError && statuses.includes(error.status)
}

/** Makes the error of an answer. `body` is its text, a Status object if the API server itself wrote it. */
export function makeApiError(what: string, status: number, body: string): ApiError {
  const { reason = '', message = body.slice(0, MESSAGE_LIMIT) } = parseStatus(body)
  return new ApiError(status, reason, `${what}: ${String(status)} ${message}`)
}

const MESSAGE_LIMIT = 1_000

function parseStatus(body: string): { readonly reason?: string; readonly message?: string } {
  try {
    const parsed: unknown = JSON.parse(body)
    return typeof parsed === 'object' && parsed !== null ? parsed : {}
  } catch {
    return {}
  }
}
