import type { OrgId, RunId, SandboxId } from '../ids.ts'
import type { SandboxStatus, StatusReason } from './lifecycle.ts'

/** A sandbox as clients see it (service description 2.2). */
export type Sandbox = {
  readonly id: SandboxId
  readonly org_id: OrgId
  readonly name: string
  readonly slug: string
  readonly status: SandboxStatus
  readonly ephemeral: boolean
  readonly created_at: Date
  readonly last_failure_message: string | null
  readonly started_at: Date | null
  readonly status_reason: StatusReason | null
  readonly stopped_at: Date | null
  /** The latest start, open or over; null before the first. */
  readonly run_id: RunId | null
  /** The spec's response projection as JSON text: it never changes, so it is rendered once, at creation. */
  readonly spec_json: string
}

/**
 * The sandbox as the JSON text of a reply. Text, because the spec is kept ready made; put together by hand, because
 * only `name` and `last_failure_message` can hold what JSON escapes (half the time of `JSON.stringify`, 2026-11).
 */
export function renderSandbox(sandbox: Sandbox): string {
  const { id, org_id, slug, status, ephemeral, status_reason } = sandbox
  const name = JSON.stringify(sandbox.name)
  const failure = JSON.stringify(sandbox.last_failure_message)
  const reason = status_reason === null ? 'null' : `"${status_reason}"`
  const runId = sandbox.run_id === null ? 'null' : `"${sandbox.run_id}"`
  const times = `"created_at":${time(sandbox.created_at)},"started_at":${time(sandbox.started_at)},"stopped_at":${time(sandbox.stopped_at)}`
  return `{"id":"${id}","org_id":"${org_id}","name":${name},"slug":"${slug}","status":"${status}","status_reason":${reason},"ephemeral":${String(ephemeral)},"run_id":${runId},"last_failure_message":${failure},${times},"spec":${sandbox.spec_json}}`
}

function time(instant: Date | null): string {
  return instant === null ? 'null' : `"${instant.toISOString()}"`
}
