import type { OperationId } from '../../contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../../contract/service/operations.ts'
import { makeHandlerFactory, type Handler } from './handler.ts'
import { makeAccountHandlers } from './accounts.ts'
import { makeUsageHandlers } from './usage.ts'
import { makeOrgHandlers } from './org.ts'
import { makeQuotaHandlers } from './quotas.ts'
import { makeSandboxLogHandlers } from './sandbox-logs.ts'
import { makeSandboxHandlers } from './sandboxes.ts'
import { makeVolumeFileHandlers } from './volume-files.ts'
import { makeVolumeHandlers } from './volumes.ts'
import type { UseCases } from '../use-cases.ts'
import type { SchemaCompiler } from '../requests/schema-compiler.ts'

/** The operations that need a key and answer JSON; the compiler asks for each of them. */
export type HandledOperation = Exclude<OperationId, 'open_agent' | keyof typeof SERVICE_OPERATIONS>

/** The table of handlers: what each operation asks of the use cases. */
export function makeHandlers(useCases: UseCases, makeParser: SchemaCompiler): Record<HandledOperation, Handler> {
  const handler = makeHandlerFactory(makeParser)
  return {
    ...makeSandboxHandlers(useCases, handler),
    ...makeSandboxLogHandlers(useCases, handler),
    ...makeVolumeHandlers(useCases, handler),
    ...makeVolumeFileHandlers(useCases, handler),
    ...makeOrgHandlers(useCases, handler),
    ...makeUsageHandlers(useCases, handler),
    ...makeQuotaHandlers(useCases, handler),
    ...makeAccountHandlers(useCases, handler),
  }
}
