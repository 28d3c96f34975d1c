import type * as readEvents from '../../src/control/events/read-events.ts'
import type * as authenticate from '../../src/control/orgs/authenticate.ts'
import type * as signInSessions from '../../src/control/sign-in/sessions.ts'
import type * as orgs from '../../src/control/orgs/orgs.ts'
import type * as idempotency from '../../src/control/requests/idempotency.ts'
import type * as createSandbox from '../../src/control/sandboxes/create-sandbox.ts'
import type * as deleteSandbox from '../../src/control/sandboxes/delete-sandbox.ts'
import type * as readSandboxes from '../../src/control/sandboxes/read-sandboxes.ts'
import type * as renameSandbox from '../../src/control/sandboxes/rename-sandbox.ts'
import type * as startSandbox from '../../src/control/sandboxes/start-sandbox.ts'
import type * as stopSandbox from '../../src/control/sandboxes/stop-sandbox.ts'
import type * as waitForSandbox from '../../src/control/sandboxes/waits/wait-for-sandbox.ts'
import type * as openChannel from '../../src/control/streams/open-channel.ts'
import type * as readLogs from '../../src/control/streams/read-logs.ts'
import type * as readUsage from '../../src/control/usage/read-usage.ts'
import type * as volumeFiles from '../../src/control/volumes/volume-files.ts'
import type { ControlDeps } from '../../src/control/make-deps.ts'
import { callWith, type CallUseCase } from '../../src/http/requests/call-use-case.ts'

type UseCaseModules = typeof readEvents &
  typeof authenticate &
  typeof signInSessions &
  typeof orgs &
  typeof idempotency &
  typeof createSandbox &
  typeof deleteSandbox &
  typeof readSandboxes &
  typeof renameSandbox &
  typeof startSandbox &
  typeof stopSandbox &
  typeof waitForSandbox &
  typeof openChannel &
  typeof readLogs &
  typeof readUsage &
  typeof volumeFiles

type FakeOf<UseCase> = UseCase extends (deps: never, ...args: infer Args) => infer Result
  ? (...args: Args) => Result
  : never

/** The use cases that tests of the transport replace, by name and without their dependencies. */
export type UseCases = { readonly [Name in keyof UseCaseModules]: FakeOf<UseCaseModules[Name]> }

/**
 * Calls a fake in place of the use case of the same name. Calls `others`, if given, in place of all use cases without a
 * fake.
 */
export function callFakes(deps: ControlDeps, fakes: Partial<UseCases>, others?: () => Promise<never>): CallUseCase {
  const byName = new Map<string, unknown>(Object.entries(fakes))
  const callReal = callWith(deps)
  return (useCase, ...args) => {
    const fake = byName.get(useCase.name) ?? others
    if (typeof fake !== 'function') return callReal(useCase, ...args)
    // `UseCases` has checked the type of the fake.
    return (fake as (...given: typeof args) => ReturnType<typeof useCase>)(...args)
  }
}
