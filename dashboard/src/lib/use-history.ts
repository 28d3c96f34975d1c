import { useRef } from 'preact/hooks'
import { get } from './api.ts'
import { useLoad } from './load.ts'
import type { OrgMetrics } from './types.ts'

export type Use = {
  readonly cpu: readonly number[]
  readonly memory: readonly number[]
  readonly vcpus: number
  readonly memoryBytes: number
}

const INTERVAL_MS = 5_000
/** How many values a sparkline has. */
const VALUES = 20
const SANDBOXES = 100

/** What the running sandboxes used lately, by id: those that use the most of the processor. */
export function useUse(): ReadonlyMap<string, Use> {
  const history = useRef(new Map<string, Use>())
  useLoad(
    async (signal) => {
      const { data } = await get<OrgMetrics>('/v1/metrics', { query: { limit: SANDBOXES }, signal })
      const next = new Map<string, Use>()
      for (const { id, vcpus, memory_mib, latest } of data) {
        if (latest === null) continue
        const old = history.current.get(id)
        next.set(id, {
          cpu: [...(old?.cpu ?? []), latest.used_vcpus].slice(-VALUES),
          memory: [...(old?.memory ?? []), latest.memory_bytes].slice(-VALUES),
          vcpus,
          memoryBytes: memory_mib * 1024 * 1024,
        })
      }
      history.current = next
    },
    [],
    { everyMs: INTERVAL_MS },
  )
  return history.current
}
