import type { DesiredRun, SyncAnswer } from '../../contract/workers/worker-protocol.ts'
import { renderList, renderObject } from '../../domain/json-text.ts'

/** A desired run whose specification still is the stored JSON text. */
export type UnrenderedRun = Omit<DesiredRun, 'spec'> & { readonly spec_json: string }

/** The answer to a sync before it is rendered. */
export type UnrenderedAnswer = Omit<SyncAnswer, 'desired_runs'> & {
  readonly desired_runs: readonly UnrenderedRun[] | null
}

/** Renders a `SyncAnswer` as JSON text. To render a specification of 4 MiB again took 16 ms in one turn of the event loop (2026-11). */
export function renderAnswer({ desired_runs, ...answer }: UnrenderedAnswer): string {
  const rendered = desired_runs?.map(({ spec_json, ...run }) => renderObject(run, { spec: spec_json }))
  return renderObject(answer, { desired_runs: rendered === undefined ? 'null' : renderList(rendered) })
}
