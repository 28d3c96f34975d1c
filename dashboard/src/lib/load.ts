import { useEffect, useRef, useState } from 'preact/hooks'

/** Something that is loaded: `data` stays while it is loaded again. */
export type Loaded<T> = { readonly data: T | null; readonly error: unknown; readonly reload: () => void }

/** Loads when the component appears, when `inputs` change, on `reload()`, and every `everyMs` while the page is visible. */
export function useLoad<T>(
  load: (signal: AbortSignal) => Promise<T>,
  inputs: readonly unknown[],
  { everyMs = 0 }: { readonly everyMs?: number } = {},
): Loaded<T> {
  const [state, setState] = useState<{ data: T | null; error: unknown }>({ data: null, error: null })
  const [round, setRound] = useState(0)
  const latest = useRef(load)
  latest.current = load
  useEffect(() => {
    setState((old) => (old.data === null && old.error === null ? old : { data: null, error: null }))
  }, inputs)
  useEffect(() => {
    const cancel = new AbortController()
    let timer: number | undefined
    const run = async (): Promise<void> => {
      if (!document.hidden || everyMs === 0) {
        try {
          const data = await latest.current(cancel.signal)
          if (!cancel.signal.aborted) setState({ data, error: null })
        } catch (error) {
          if (!cancel.signal.aborted) setState((old) => ({ data: old.data, error }))
        }
      }
      if (everyMs > 0 && !cancel.signal.aborted) timer = window.setTimeout(() => void run(), everyMs)
    }
    void run()
    return () => {
      cancel.abort()
      clearTimeout(timer)
    }
  }, [...inputs, round, everyMs])
  return { ...state, reload: () => setRound((old) => old + 1) }
}
