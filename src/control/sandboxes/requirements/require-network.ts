import { addressesOf, findDeniedRule } from '../../../domain/network/operator-denials.ts'
import { subtractAll } from '../../../domain/cidr.ts'
import type { Caller } from '../../../domain/orgs/caller.ts'
import { describeSeen, refusalProblem } from '../../../domain/refusal.ts'
import type { NetworkSpec } from '../../../domain/spec/spec.ts'
import * as networkRanges from '../../../store/orgs/network-ranges.ts'
import type { BaseDeps, ControlSettings } from '../../deps.ts'

export type NetworkDenialDeps = { readonly settings: Pick<ControlSettings, 'networkDeny'> }

/**
 * Throws `invalid_sandbox_config` for a rule that allows only addresses that the operator denies to the organization. A
 * rule that also allows other addresses passes; the driver keeps the denied ones closed. Addresses that only a worker
 * knows are not checked here.
 */
export async function requireAllowedNetwork(
  deps: Pick<BaseDeps, 'db'> & NetworkDenialDeps,
  { org_id }: Pick<Caller, 'org_id'>,
  { policy }: NetworkSpec,
): Promise<void> {
  const rules = policy?.rules ?? []
  if (rules.length === 0) return
  const denied = addressesOf(deps.settings.networkDeny())
  if (findDeniedRule(rules, denied) === null) return
  // Only now read what is open for the organization: few policies name an address that is denied.
  const allowed = await deps.db.asOrg(org_id, (q) => networkRanges.find(q, org_id))
  const index = findDeniedRule(rules, subtractAll(denied, addressesOf(allowed)))
  if (index === null) return
  throw refusalProblem({
    code: 'invalid_sandbox_config',
    field: `network.policy.rules[${String(index)}].destination`,
    seen: JSON.stringify(rules[index]?.destination) ?? describeSeen(undefined),
    accepted:
      'a destination that the operator does not deny to sandboxes, such as the group public; the operator can open others for an organization (`sandyard org allow`)',
  })
}
