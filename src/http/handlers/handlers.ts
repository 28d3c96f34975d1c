import type { OperationId } from '../../contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../../contract/service/operations.ts'
import { makeHandlerFactory, type Handler, type CallUseCase } from './handler.ts'
import { makeAccountHandlers } from './accounts.ts'
import { makeUsageHandlers } from './usage.ts'
import { makeOrgHandlers } from './org.ts'
import { makeQuotaHandlers } from './quotas.ts'
import { makeSandboxLogHandlers } from './sandbox-logs.ts'
import { makeSandboxHandlers } from './sandboxes.ts'
import { makeVolumeFileHandlers } from './volume-files.ts'
import { makeVolumeHandlers } from './volumes.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'

/** The operations that need a key and answer JSON; the compiler asks for each of them. */
export type HandledOperation = Exclude<OperationId, 'open_agent' | keyof typeof SERVICE_OPERATIONS>

/** The table of handlers: what each operation asks of the use cases. */
export function makeHandlers(call: CallUseCase, makeParser: SchemaCompiler): Record<HandledOperation, Handler> {
  const handler = makeHandlerFactory(makeParser)
  return {
    ...makeSandboxHandlers(call, handler),
    ...makeSandboxLogHandlers(call, handler),
    ...makeVolumeHandlers(call, handler),
    ...makeVolumeFileHandlers(call, handler),
    ...makeOrgHandlers(call, handler),
    ...makeUsageHandlers(call, handler),
    ...makeQuotaHandlers(call, handler),
    ...makeAccountHandlers(call, handler),
  }
}
