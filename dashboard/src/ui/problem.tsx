import { ApiError } from '../lib/api.ts'

/** An error in the words of the API: what was refused, what was seen, and what is accepted. */
export function Problem({ error, onRetry }: { readonly error: unknown; readonly onRetry?: (() => void) | undefined }) {
  return (
    <div class="problem" role="alert">
      <p>{describeError(error)}</p>
      {error instanceof ApiError && error.requestId !== null ? <p class="faint">Request {error.requestId}</p> : null}
      {onRetry === undefined ? null : (
        <button type="button" class="button" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  )
}

/** An error as text. */
export function describeError(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  if (!(error instanceof ApiError)) return text
  const { field, seen, accepted } = error.details
  const parts = [
    ...(typeof field === 'string' && !text.includes(field) ? [`Field: ${field}.`] : []),
    ...(typeof seen === 'string' && !text.includes(seen) ? [`Seen: ${seen}.`] : []),
    ...(typeof accepted === 'string' && !text.includes(accepted) ? [`Accepted: ${accepted}.`] : []),
  ]
  return [text, ...parts].join(' ')
}
