import type { Ability } from '../domain/abilities.ts'
import { Problem } from '../domain/problem.ts'
import { requiredAbilities } from '../domain/required-abilities.ts'
import type { SandboxSpec } from '../domain/spec.ts'
import * as workers from '../store/workers.ts'
import type { ControlDeps } from './deps.ts'

/**
 * What a spec needs of a worker's driver. Throws `invalid_sandbox_config`, naming the first field that no worker can
 * enforce, so that nothing that was asked for is ever ignored.
 */
export async function requireAbilities(
  deps: Pick<ControlDeps, 'db' | 'clock'>,
  spec: SandboxSpec,
): Promise<readonly Ability[]> {
  const needs = requiredAbilities(spec)
  if (needs.length === 0) return []
  const offers = await deps.db.asSystem((q) => workers.abilitiesOffered(q))
  for (const need of needs) {
    if (offers.some((offer) => offer.includes(need.ability))) continue
    throw new Problem('invalid_sandbox_config', {
      message: `${need.field} ${need.why}, and no worker of this installation is`,
      details: {
        field: need.field,
        needs: need.ability,
        why: need.why,
        accepted: 'a request without it; see the README, "What is enforced and what is refused"',
      },
    })
  }
  const abilities = [...new Set(needs.map(({ ability }) => ability))]
  if (!offers.some((offer) => abilities.every((ability) => offer.includes(ability)))) {
    throw new Problem('invalid_sandbox_config', {
      message: 'no single worker can enforce all that this sandbox asks for',
      details: { field: needs.map(({ field }) => field).join(', '), needs: abilities },
    })
  }
  return abilities
}
