/** The `standBy` of a control plane that only leaves tickets. */
export function rejectOnAbort(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const end = (): void => {
      reject(new Error('the worker no longer stands by'))
    }
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  })
}
