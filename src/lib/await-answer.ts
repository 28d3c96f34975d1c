/** Both ends of a wait for an answer. The first call of either ends it. */
export type Answer<T> = { readonly resolve: (value: T) => void; readonly reject: (error: Error) => void }

/**
 * Waits for an answer that comes by a call. `ask` gets the functions that give it. Rejects with the signal's reason when the signal aborts,
 * after `onAbort`. Throws that reason at once, without `ask`, if it has aborted before.
 */
export function awaitAnswer<T>(
  signal: AbortSignal,
  { ask, onAbort }: { readonly ask: (answer: Answer<T>) => void; readonly onAbort: () => void },
): Promise<T> {
  signal.throwIfAborted()
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      onAbort()
      reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
    }
    signal.addEventListener('abort', abort, { once: true })
    const end = (): void => signal.removeEventListener('abort', abort)
    ask({
      resolve: (value) => {
        end()
        resolve(value)
      },
      reject: (error) => {
        end()
        reject(error)
      },
    })
  })
}

/** Waits for a promise. Rejects with the signal's reason when the signal aborts first; what was promised goes on, and may fail unseen. */
export async function awaitUntilAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  promise.catch(() => undefined)
  return await awaitAnswer<T>(signal, {
    ask: ({ resolve, reject }) => {
      promise.then(resolve, reject)
    },
    onAbort: () => undefined,
  })
}
