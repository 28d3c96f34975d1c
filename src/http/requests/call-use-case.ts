import type { ControlDeps } from '../../control/make-deps.ts'

/**
 * Calls a use case of `src/control` with this process's dependencies: `call(getOrg, caller)` runs `getOrg(deps,
 * caller)`. Tests of the HTTP layer replace single use cases with fakes here.
 */
export type CallUseCase = <Args extends readonly unknown[], Result>(
  useCase: (deps: ControlDeps, ...args: Args) => Result,
  ...args: Args
) => Result

/** Creates the `CallUseCase` of a process. */
export function callWith(deps: ControlDeps): CallUseCase {
  return (useCase, ...args) => useCase(deps, ...args)
}
