import type { OperationId } from '../contract/operations.ts'
import type { SERVICE_OPERATIONS } from '../contract/operations/service.ts'
import { makeHandlerMaker, type Handler } from './handler.ts'
import { makeAccountHandlers } from './handlers/accounts.ts'
import { makeBillingHandlers } from './handlers/billing.ts'
import { makeOrgHandlers } from './handlers/org.ts'
import { makeQuotaHandlers } from './handlers/quotas.ts'
import { makeSandboxLogHandlers } from './handlers/sandbox-logs.ts'
import { makeSandboxHandlers } from './handlers/sandboxes.ts'
import { makeVolumeFileHandlers } from './handlers/volume-files.ts'
import { makeVolumeHandlers } from './handlers/volumes.ts'
import type { UseCases } from './use-cases.ts'
import type { ParserMaker } from './validate.ts'

/** The operations that need a key and answer JSON; the compiler asks for each of them. */
export type HandledOperation = Exclude<OperationId, 'open_agent' | keyof typeof SERVICE_OPERATIONS>

/** The table of handlers: what each operation asks of the use cases. */
export function makeHandlers(useCases: UseCases, makeParser: ParserMaker): Record<HandledOperation, Handler> {
  const handler = makeHandlerMaker(makeParser)
  return {
    ...makeSandboxHandlers(useCases, handler),
    ...makeSandboxLogHandlers(useCases, handler),
    ...makeVolumeHandlers(useCases, handler),
    ...makeVolumeFileHandlers(useCases, handler),
    ...makeOrgHandlers(useCases, handler),
    ...makeBillingHandlers(useCases, handler),
    ...makeQuotaHandlers(useCases, handler),
    ...makeAccountHandlers(useCases, handler),
  }
}
