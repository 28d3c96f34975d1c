/**
 * What the control plane asks of a worker about the use of sandboxes. A stream of kind `metrics` has a `MetricsQuery` as its
 * purpose. The worker writes the answer as JSON and ends the stream. To `follow`, it answers with a line for each new point, and
 * with `null` at the end of the run. The control plane sends nothing.
 */
import type { OrgId, RunId, SandboxId } from '../../domain/ids.ts'
import type { UsePoint, UseRange } from '../../domain/sandboxes/use-points.ts'

export type MetricsQuery =
  /** The points of a range. The answer is a `UseSeries`. */
  | {
      readonly get: 'series'
      readonly sandbox_id: SandboxId
      readonly range: UseRange
      /** The least step, in milliseconds. */
      readonly stepMs: number
    }
  /** Each new point of a running sandbox. The answer ends at once if the sandbox isn't sampled. */
  | { readonly get: 'follow'; readonly sandbox_id: SandboxId }
  /** What the running sandboxes of an organization, or of all (null), used at last. The answer is a list of `LatestUse`. */
  | { readonly get: 'latest'; readonly org_id: OrgId | null }

export type UseSeries = { readonly stepMs: number; readonly points: readonly UsePoint[] }

export type LatestUse = {
  readonly run_id: RunId
  readonly sandbox_id: SandboxId
  readonly org_id: OrgId
  readonly point: UsePoint
}
