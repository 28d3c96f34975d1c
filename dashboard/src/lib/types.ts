import type { Static } from 'typebox'
import type { ErrorReply } from '../../../src/contract/common.ts'
import type { EventReply } from '../../../src/contract/events/operations.ts'
import type {
  ApiKeyReply,
  CreatedApiKeyReply,
  InvitationReply,
  MemberReply,
  QuotaUsageReply,
  RegistryCredentialReply,
  SshKeyReply,
} from '../../../src/contract/orgs/schemas.ts'
import type { PreviewReply } from '../../../src/contract/previews/operations.ts'
import type { SandboxReply } from '../../../src/contract/sandboxes/sandboxes.ts'
import type { SandboxSpecReply } from '../../../src/contract/sandboxes/spec-output.ts'
import type { ReadyReply } from '../../../src/contract/service/operations.ts'
import type { OperationReply, SnapshotReply } from '../../../src/contract/snapshots/operations.ts'
import type {
  MetricPointReply,
  InstallationMetricsReply,
  MetricsReply,
  OrgMetricsReply,
} from '../../../src/contract/streams/metrics-operations.ts'
import type { LogEventData } from '../../../src/contract/streams/operations.ts'
import type {
  StorageBreakdownReply,
  UsageBreakdownReply,
  UsageSummaryReply,
} from '../../../src/contract/usage/operations.ts'
import type {
  ListedSessionReply,
  OidcRefusal,
  SessionReply,
  SignInOptionsReply,
} from '../../../src/contract/sign-in/sign-in.ts'
import type { VolumeFileReply } from '../../../src/contract/volumes/file-operations.ts'
import type { VolumeReply } from '../../../src/contract/volumes/operations.ts'
import type {
  CreatedWebhookReply,
  RotatedSecretReply,
  WebhookDeliveryReply,
  WebhookReply,
  WebhookTestReply,
} from '../../../src/contract/webhooks/operations.ts'

import type {
  InstallationOrgReply,
  PlanReply,
  ServerReply,
  WaitingSandboxesReply,
  WorkerReply,
} from '../../../src/contract/workers/operations.ts'

/** The replies of the public API, by the types of its contract. */

export type Sandbox = Static<typeof SandboxReply>
export type Spec = Static<typeof SandboxSpecReply>
export type AuditEvent = Static<typeof EventReply>
export type ApiKey = Static<typeof ApiKeyReply>
export type CreatedApiKey = Static<typeof CreatedApiKeyReply>
export type Member = Static<typeof MemberReply>
export type Quotas = Static<typeof QuotaUsageReply>
export type RegistryCredential = Static<typeof RegistryCredentialReply>
export type SshKey = Static<typeof SshKeyReply>
export type Preview = Static<typeof PreviewReply>
export type Snapshot = Static<typeof SnapshotReply>
export type SnapshotOperation = Static<typeof OperationReply>
export type MetricPoint = Static<typeof MetricPointReply>
export type Metrics = Static<typeof MetricsReply>
export type OrgMetrics = Static<typeof OrgMetricsReply>
export type LogLine = Static<typeof LogEventData>
export type UsageSummary = Static<typeof UsageSummaryReply>
export type UsageBreakdown = Static<typeof UsageBreakdownReply>
export type StorageBreakdown = Static<typeof StorageBreakdownReply>
export type Volume = Static<typeof VolumeReply>
export type VolumeFile = Static<typeof VolumeFileReply>
export type Session = SessionReply
export type SignInOptions = SignInOptionsReply
export type SignInRefusal = OidcRefusal
export type ListedSession = ListedSessionReply
export type Invitation = Static<typeof InvitationReply>
export type Webhook = Static<typeof WebhookReply>
export type CreatedWebhook = Static<typeof CreatedWebhookReply>
export type RotatedSecret = Static<typeof RotatedSecretReply>
export type WebhookTest = Static<typeof WebhookTestReply>
export type WebhookDelivery = Static<typeof WebhookDeliveryReply>
export type InstallationMetrics = Static<typeof InstallationMetricsReply>
export type Worker = Static<typeof WorkerReply>
export type WaitingSandboxes = Static<typeof WaitingSandboxesReply>
export type InstallationOrg = Static<typeof InstallationOrgReply>
export type Server = Static<typeof ServerReply>
export type Plan = Static<typeof PlanReply>
export type Readiness = Static<typeof ReadyReply>
export type ErrorBody = Static<typeof ErrorReply>
export type Page<Item> = {
  readonly data: readonly Item[]
  readonly has_more: boolean
  readonly next_cursor: string | null
}
