import type { OrgId, SandboxId } from './ids.ts'
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
  /** The spec's response projection as JSON text: it never changes, so it is rendered once, at creation. */
  readonly spec_json: string
}

/** The sandbox as the JSON text of a reply. Text, because the spec is kept ready made. */
export function renderSandbox(sandbox: Sandbox): string {
  const { spec_json, ...rest } = sandbox
  return `${JSON.stringify(rest).slice(0, -1)},"spec":${spec_json}}`
}
