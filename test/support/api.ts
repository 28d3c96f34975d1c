import type { Static } from 'typebox'
import type { OperationId } from '../../src/contract/operations.ts'
import type {
  StorageBreakdownReply,
  UsageBreakdownReply,
  UsageSummaryReply,
} from '../../src/contract/usage/operations.ts'
import type { ModificationReply } from '../../src/contract/sandboxes/modifications.ts'
import type { MetricsReply } from '../../src/contract/streams/metrics-operations.ts'
import type { PreviewReply } from '../../src/contract/previews/operations.ts'
import type { EventPage } from '../../src/contract/events/operations.ts'
import type { SandboxPage, SandboxReply } from '../../src/contract/sandboxes/sandboxes.ts'
import type { OrgReply, QuotaUsageReply } from '../../src/contract/orgs/schemas.ts'
import type { ForkReply, OperationReply, SnapshotPage, SnapshotReply } from '../../src/contract/snapshots/operations.ts'
import type { VolumeList, VolumeReply } from '../../src/contract/volumes/operations.ts'
import { assertReplyMatchesContract } from './contract.ts'
import { exchange, type RequestParts } from './send.ts'
import type { RealServer } from './server.ts'

export type SandboxBody = Static<typeof SandboxReply>
export type SnapshotOperationBody = Static<typeof OperationReply>
export type ModificationBody = Static<typeof ModificationReply>

/** The types of the replies that tests read. */
type Bodies = {
  readonly list_sandboxes: Static<typeof SandboxPage>
  readonly list_events: Static<typeof EventPage>
  readonly get_org: Static<typeof OrgReply>
  readonly list_volumes: Static<typeof VolumeList>
  readonly create_volume: Static<typeof VolumeReply>
  readonly get_default_volume: Static<typeof VolumeReply>
  readonly get_volume: Static<typeof VolumeReply>
  readonly update_volume: Static<typeof VolumeReply>
  readonly plan_modification: ModificationBody
  readonly modify_sandbox: ModificationBody
  readonly get_quotas: Static<typeof QuotaUsageReply>
  readonly get_usage: Static<typeof UsageSummaryReply>
  readonly get_sandbox_breakdown: Static<typeof UsageBreakdownReply>
  readonly read_sandbox_metrics: Static<typeof MetricsReply>
  readonly create_preview: Static<typeof PreviewReply>
  readonly create_snapshot: SnapshotOperationBody
  readonly get_snapshot_operation: SnapshotOperationBody
  readonly get_snapshot: Static<typeof SnapshotReply>
  readonly get_snapshot_by_name: Static<typeof SnapshotReply>
  readonly list_snapshots: Static<typeof SnapshotPage>
  readonly fork_sandbox: Static<typeof ForkReply>
  readonly get_storage_breakdown: Static<typeof StorageBreakdownReply>
}
type BodyOf<Id extends OperationId> = Id extends keyof Bodies ? Bodies[Id] : SandboxBody
type ErrorBody = { readonly error: { readonly code: string; readonly message: string; readonly details: unknown } }

export type Answer<Body> = { readonly status: number; readonly headers: Headers; readonly text: string } & (
  { readonly isRefusal: false; readonly body: Body } | { readonly isRefusal: true; readonly body: ErrorBody }
)

/**
 * Calls an operation over HTTP, and asserts that our schemas and the published API document allow the reply
 * (`contract.ts`).
 */
export async function call<Id extends OperationId>(
  server: Pick<RealServer, 'url' | 'key'>,
  id: Id,
  asking: RequestParts = {},
): Promise<Answer<BodyOf<Id>>> {
  const { status, headers, text } = await exchange(server.url, { id, key: server.key, asking })
  if (!(headers.get('content-type') ?? '').startsWith('application/json'))
    throw new Error(`${id} answered ${String(status)} without JSON: ${text}`)
  assertReplyMatchesContract(id, status, JSON.parse(text))
  return status >= 400
    ? { status, headers, text, isRefusal: true, body: JSON.parse(text) }
    : { status, headers, text, isRefusal: false, body: JSON.parse(text) }
}

/** As `call`, for a call that must succeed. Resolves with the body. */
export async function mustCall<Id extends OperationId>(
  server: Pick<RealServer, 'url' | 'key'>,
  id: Id,
  asking: RequestParts = {},
): Promise<BodyOf<Id>> {
  const answer = await call(server, id, asking)
  if (answer.isRefusal) throw new Error(`${id} was refused: ${answer.text}`)
  return answer.body
}

/** Lists every sandbox of the organization, page by page. */
export async function listAll(server: Pick<RealServer, 'url' | 'key'>): Promise<readonly SandboxBody[]> {
  const all: SandboxBody[] = []
  for (let cursor: string | null | undefined = ''; typeof cursor === 'string';) {
    const query: Record<string, string> = cursor === '' ? { limit: '100' } : { limit: '100', cursor }
    const page: Static<typeof SandboxPage> = await mustCall(server, 'list_sandboxes', { query })
    all.push(...page.data)
    cursor = page.next_cursor
  }
  return all
}
