import { renderObject } from '../json-text.ts'
import type { OrgId, RunId, SandboxId } from '../ids.ts'
import type { IsolationLevel } from '../isolation.ts'
import type { SandboxStatus, StatusReason } from './lifecycle.ts'

/** A sandbox as clients see it, without its specification, which may have megabytes. */
export type SandboxSummary = {
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
  /** The latest run, whether it is open or has ended. Null before the first start. */
  readonly run_id: RunId | null
  /** The isolation that the latest run has or had. Null until it runs, and if its driver isolates nothing. */
  readonly isolation: IsolationLevel | null
}

/** A sandbox as clients see it. */
export type Sandbox = SandboxSummary & {
  /**
   * The part of the specification that replies show, as JSON text. It is rendered when the sandbox is created, and changes with its
   * secrets and with the ports that its host assigns.
   */
  readonly spec_json: string
}

/** Identifies one sandbox of one organization. */
export type SandboxKey = Pick<SandboxSummary, 'org_id' | 'id'>

/**
 * Renders a sandbox as the JSON text of a reply. Equal sandboxes have equal texts, so an ETag is the hash of the text.
 */
export function renderSandbox(sandbox: Sandbox): string {
  const { id, org_id, name, slug, status, status_reason, ephemeral, run_id, last_failure_message } = sandbox
  const { created_at, started_at, stopped_at, isolation, spec_json } = sandbox
  const identity = { id, org_id, name, slug, status, status_reason, ephemeral, run_id, last_failure_message }
  return renderObject({ ...identity, created_at, started_at, stopped_at, isolation }, { spec: spec_json })
}
