import type { ComponentChildren } from 'preact'
import type { Loaded } from '../lib/load.ts'
import { Problem } from './problem.tsx'

type LoadProps<T> = { readonly of: Loaded<T>; readonly children: (data: T) => ComponentChildren }

/** Shows what was loaded; until then a placeholder, and the error if there is one. Requests end by themselves after 30 s. */
export function Load<T>({ of: { data, error, reload }, children }: LoadProps<T>) {
  return (
    <>
      {error === null ? null : <Problem error={error} onRetry={reload} />}
      {data !== null ? children(data) : error === null ? <Loading /> : null}
    </>
  )
}

export function Loading() {
  return (
    <div class="loading" role="status">
      <span class="hidden">Loading</span>
    </div>
  )
}
