import type { OperationId } from '../../contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../../contract/service/operations.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'
import { makeEventHandlers } from './events.ts'
import { makeHandlerFactory, type CallUseCase, type Handler } from './handler.ts'
import { makeOrgHandlers } from './orgs.ts'
import { makeSandboxLogHandlers } from './sandbox-logs.ts'
import { makeSandboxHandlers } from './sandboxes.ts'
import { makeUsageHandlers } from './usage.ts'
import { makeVolumeFileHandlers, makeVolumeHandlers } from './volumes.ts'

/** The operations that need a key and answer over HTTP. The compiler demands a handler for each of them. */
type HandledOperation = Exclude<OperationId, 'open_agent' | keyof typeof SERVICE_OPERATIONS>

/** The handlers of all operations, by their ids. */
export function makeHandlers(call: CallUseCase, compileSchema: SchemaCompiler): Record<HandledOperation, Handler> {
  const handler = makeHandlerFactory(compileSchema)
  return {
    ...makeSandboxHandlers(call, handler),
    ...makeSandboxLogHandlers(call, handler),
    ...makeVolumeHandlers(call, handler),
    ...makeVolumeFileHandlers(call, handler),
    ...makeOrgHandlers(call, handler),
    ...makeUsageHandlers(call, handler),
    ...makeEventHandlers(call, handler),
  }
}
