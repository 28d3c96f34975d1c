import type { Operation } from './operation.ts'
import { ACCOUNT_OPERATIONS } from './operations/accounts.ts'
import { BILLING_OPERATIONS } from './operations/billing.ts'
import { EVENT_OPERATIONS } from './operations/events.ts'
import { ORG_OPERATIONS } from './operations/org.ts'
import { QUOTA_OPERATIONS } from './operations/quotas.ts'
import { SANDBOX_LOG_OPERATIONS } from './operations/sandbox-logs.ts'
import { SANDBOX_BY_NAME_OPERATIONS } from './operations/sandboxes-by-name.ts'
import { SANDBOX_OPERATIONS } from './operations/sandboxes.ts'
import { SERVICE_OPERATIONS } from './operations/service.ts'
import { VOLUME_FILE_OPERATIONS } from './operations/volume-files.ts'
import { VOLUME_OPERATIONS } from './operations/volumes.ts'

/** Every operation of the API. A route, its validation, its metrics and its documentation all follow from a row. */
export const OPERATIONS = {
  ...SANDBOX_OPERATIONS,
  ...SANDBOX_LOG_OPERATIONS,
  ...SANDBOX_BY_NAME_OPERATIONS,
  ...VOLUME_OPERATIONS,
  ...VOLUME_FILE_OPERATIONS,
  ...ORG_OPERATIONS,
  ...QUOTA_OPERATIONS,
  ...ACCOUNT_OPERATIONS,
  ...BILLING_OPERATIONS,
  ...EVENT_OPERATIONS,
  ...SERVICE_OPERATIONS,
} as const satisfies Record<string, Operation>

export type OperationId = keyof typeof OPERATIONS
