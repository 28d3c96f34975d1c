import { MODIFICATION_OPERATIONS as OPERATIONS } from '../../contract/sandboxes/modifications.ts'
import { modifySandbox, planModification, type Modification } from '../../control/sandboxes/modify-sandbox.ts'
import { asId, type SandboxId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { describeSeen, refusalProblem } from '../../domain/refusal.ts'
import { normalizeSecretsPatch, type NormalizedPatch } from '../../domain/spec/normalize-secret-patch.ts'
import type { CallUseCase } from '../requests/call-use-case.ts'
import { asksForSomething } from '../requests/schemas/empty-members.ts'
import type { Handler, HandlerFactory } from './handler.ts'

/** Creates the handlers of changes of sandboxes that exist. */
export function makeModificationHandlers(
  call: CallUseCase,
  handler: HandlerFactory,
): Record<keyof typeof OPERATIONS, Handler> {
  return {
    plan_modification: handler(
      OPERATIONS.plan_modification,
      async ({ params, body }, { caller, takeStoredBody: beforeSpec }) =>
        render(await call(planModification, caller, refOf(params), { ...parsePatch(body), beforeSpec })),
    ),
    modify_sandbox: handler(
      OPERATIONS.modify_sandbox,
      async ({ params, body }, { caller, takeStoredBody: beforeSpec }) =>
        render(await call(modifySandbox, caller, refOf(params), { ...parsePatch(body), beforeSpec })),
    ),
  }
}

const CHANGEABLE: readonly string[] = ['policy', 'secrets', 'secrets_remove']

/** Throws `modification_unsupported` if the body asks for a change of anything but secrets. */
function parsePatch(body: Parameters<typeof normalizeSecretsPatch>[0]): NormalizedPatch {
  for (const [field, value] of Object.entries(body)) {
    if (CHANGEABLE.includes(field) || !asksForSomething(value)) continue
    const details = { field, seen: describeSeen(field), accepted: CHANGEABLE }
    throw new Problem('modification_unsupported', {
      message: `${field} of a sandbox can not change; only secrets can`,
      details,
    })
  }
  const result = normalizeSecretsPatch(body)
  if ('refusal' in result) throw refusalProblem(result.refusal)
  return result
}

function refOf({ sandbox_id }: { readonly sandbox_id: string }): { readonly id: SandboxId } {
  return { id: asId<SandboxId>(sandbox_id.toLowerCase()) }
}

function render(modification: Modification): string {
  return JSON.stringify({ ...modification, warnings: [], resize_status: [] })
}
