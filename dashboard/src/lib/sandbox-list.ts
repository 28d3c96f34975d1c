import { useEffect, useState } from 'preact/hooks'
import { at, get, pagesOf } from './api.ts'
import { followEvents } from './events.ts'
import type { Sandbox } from './types.ts'

export type SandboxList = {
  readonly sandboxes: readonly Sandbox[]
  /** Whether all pages have arrived. The first is shown before that. */
  readonly isComplete: boolean
  readonly error: unknown
  readonly reload: () => void
}

/** At most this many pages of 100 sandboxes are loaded. */
const PAGES_MAX = 20
/** Events of one moment are answered together. */
const GATHER_MS = 150
/** With more changes at once, the list is loaded again instead of each sandbox. */
const SINGLE_MAX = 20

/** The sandboxes of the organization, the newest first, as they change. `labels`: JSON, as the API takes it. */
export function useSandboxes(labels: string): SandboxList {
  const [byId, setById] = useState<ReadonlyMap<string, Sandbox>>(new Map())
  const [isComplete, setComplete] = useState(false)
  const [error, setError] = useState<unknown>(null)
  const [round, setRound] = useState(0)
  const reload = (): void => setRound((old) => old + 1)

  useEffect(() => {
    const cancel = new AbortController()
    const loadAll = async (): Promise<void> => {
      const found = new Map<string, Sandbox>()
      for await (const { data } of pagesOf<Sandbox>('/v1/sandboxes', {
        query: { labels },
        pagesMax: PAGES_MAX,
        signal: cancel.signal,
      })) {
        for (const one of data) found.set(one.id, one)
        setById((old) => (round > 0 && old.size > found.size ? old : new Map(found)))
      }
      setById(found)
      setComplete(true)
      setError(null)
    }
    loadAll().catch((failure: unknown) => {
      if (!cancel.signal.aborted) setError(failure)
    })
    return () => cancel.abort()
  }, [labels, round])

  useEffect(() => {
    const changed = new Set<string>()
    let timer: number | undefined
    const flush = async (): Promise<void> => {
      timer = undefined
      const ids = [...changed]
      changed.clear()
      if (ids.length > SINGLE_MAX || labels !== '') return reload()
      const news = await Promise.all(ids.map((id) => get<Sandbox>(at`/v1/sandboxes/${id}`).catch(() => null)))
      setById((old) => merge(old, ids, news))
    }
    const stop = followEvents(({ category, payload }) => {
      const id = sandboxIdOf(payload)
      if (category !== 'sandbox' || id === null) return
      changed.add(id)
      timer ??= window.setTimeout(() => void flush(), GATHER_MS)
    })
    return () => {
      stop()
      clearTimeout(timer)
    }
  }, [labels])

  return { sandboxes: [...byId.values()], isComplete, error, reload }
}

function merge(
  old: ReadonlyMap<string, Sandbox>,
  ids: readonly string[],
  news: readonly (Sandbox | null)[],
): ReadonlyMap<string, Sandbox> {
  const next = new Map(old)
  for (const [index, id] of ids.entries()) {
    const one = news[index]
    if (one === null || one === undefined) next.delete(id)
    else next.set(id, one)
  }
  return new Map([...next].toSorted(([, a], [, b]) => b.created_at.localeCompare(a.created_at)))
}

export function sandboxIdOf(payload: unknown): string | null {
  if (typeof payload !== 'object' || payload === null || !('sandbox_id' in payload)) return null
  return typeof payload.sandbox_id === 'string' ? payload.sandbox_id : null
}
