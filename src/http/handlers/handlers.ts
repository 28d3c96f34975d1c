import type { OperationId } from '../../contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../../contract/service/operations.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import type { SchemaCompiler } from '../requests/schemas/schema-compiler.ts'
import { makeEventHandlers } from './events.ts'
import { makeHandlerFactory, type Handler } from './handler.ts'
import { makeInstallationHandlers } from './installation.ts'
import { makeMetricsHandlers } from './metrics.ts'
import { makeOrgHandlers } from './orgs.ts'
import { makeSandboxLogHandlers } from './sandbox-logs.ts'
import { makeModificationHandlers } from './modifications.ts'
import { makePreviewHandlers } from './previews.ts'
import { makeWebhookHandlers } from './webhooks.ts'
import { makeSandboxHandlers } from './sandboxes.ts'
import { makeSnapshotHandlers } from './snapshots.ts'
import { makeUsageHandlers } from './usage.ts'
import { makeVolumeFileHandlers } from './volume-files.ts'
import { makeVolumeHandlers } from './volumes.ts'

/** The operations that need a key and reply over HTTP. The compiler requires a handler for each of them. */
type HandledOperation = Exclude<OperationId, 'open_agent' | keyof typeof SERVICE_OPERATIONS>

/** Creates the handlers of all operations, by operation id. */
export function makeHandlers(call: CallUseCase, compileSchema: SchemaCompiler): Record<HandledOperation, Handler> {
  const handler = makeHandlerFactory(compileSchema)
  return {
    ...makeSandboxHandlers(call, handler),
    ...makeModificationHandlers(call, handler),
    ...makeSandboxLogHandlers(call, handler),
    ...makeMetricsHandlers(call, handler),
    ...makePreviewHandlers(call, handler),
    ...makeWebhookHandlers(call, handler),
    ...makeVolumeHandlers(call, handler),
    ...makeVolumeFileHandlers(call, handler),
    ...makeSnapshotHandlers(call, handler),
    ...makeOrgHandlers(call, handler),
    ...makeUsageHandlers(call, handler),
    ...makeEventHandlers(call, handler),
    ...makeInstallationHandlers(call, handler),
  }
}
