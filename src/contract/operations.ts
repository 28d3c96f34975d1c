import type { Operation } from './operation.ts'
import { ORG_OPERATIONS } from './orgs/operations.ts'
import { USAGE_OPERATIONS } from './usage/operations.ts'
import { EVENT_OPERATIONS } from './events/operations.ts'
import { METRICS_OPERATIONS } from './streams/metrics-operations.ts'
import { LOG_OPERATIONS } from './streams/operations.ts'
import { MODIFICATION_OPERATIONS } from './sandboxes/modifications.ts'
import { SANDBOX_BY_NAME_OPERATIONS, SANDBOX_OPERATIONS } from './sandboxes/operations.ts'
import { PREVIEW_OPERATIONS } from './previews/operations.ts'
import { SERVICE_OPERATIONS } from './service/operations.ts'
import { SNAPSHOT_OPERATIONS } from './snapshots/operations.ts'
import { VOLUME_FILE_OPERATIONS } from './volumes/file-operations.ts'
import { VOLUME_OPERATIONS } from './volumes/operations.ts'
import { WEBHOOK_OPERATIONS } from './webhooks/operations.ts'
import { INSTALLATION_OPERATIONS } from './workers/operations.ts'

/** Every operation of the API. Routes, validation, metrics and the OpenAPI document are derived from this table. */
export const OPERATIONS = {
  ...SANDBOX_OPERATIONS,
  ...MODIFICATION_OPERATIONS,
  ...LOG_OPERATIONS,
  ...METRICS_OPERATIONS,
  ...PREVIEW_OPERATIONS,
  ...SANDBOX_BY_NAME_OPERATIONS,
  ...VOLUME_OPERATIONS,
  ...VOLUME_FILE_OPERATIONS,
  ...SNAPSHOT_OPERATIONS,
  ...ORG_OPERATIONS,
  ...USAGE_OPERATIONS,
  ...EVENT_OPERATIONS,
  ...WEBHOOK_OPERATIONS,
  ...INSTALLATION_OPERATIONS,
  ...SERVICE_OPERATIONS,
} as const satisfies Record<string, Operation>

export type OperationId = keyof typeof OPERATIONS
