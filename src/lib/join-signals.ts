/**
 * A signal that aborts with the reason of the first of `signals` that does, until it is disposed of. Unlike the signal of
 * `AbortSignal.any`, it leaves nothing behind in signals that live on. V8 keeps such a signal until a full collection. If a listener
 * is left on it, Node keeps both for as long as its sources live. After 20,000 of them, one after the other, a young collection took
 * 63 ms instead of 3 (2026-11).
 */
export function joinSignals(...signals: readonly AbortSignal[]): Disposable & { readonly signal: AbortSignal } {
  const joined = new AbortController()
  const dispose = (): void => {
    for (const signal of signals) signal.removeEventListener('abort', onAbort)
  }
  const onAbort = (): void => {
    dispose()
    joined.abort(signals.find(({ aborted }) => aborted)?.reason)
  }
  for (const signal of signals) signal.addEventListener('abort', onAbort)
  if (signals.some(({ aborted }) => aborted)) onAbort()
  return { signal: joined.signal, [Symbol.dispose]: dispose }
}
