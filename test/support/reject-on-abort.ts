/** A `standBy` for tests without streams: it never gets a stream, and rejects when the signal aborts. */
export function rejectOnAbort(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const end = (): void => {
      reject(new Error('the worker no longer stands by'))
    }
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}
