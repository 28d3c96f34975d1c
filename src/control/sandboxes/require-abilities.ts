import type { Ability } from '../../domain/spec/abilities.ts'
import { Problem } from '../../domain/problem.ts'
import { requiredAbilities } from '../../domain/spec/required-abilities.ts'
import type { SandboxSpec } from '../../domain/spec/spec.ts'
import type { ControlDeps } from '../deps.ts'

type AbilityLists = readonly (readonly string[])[]

/**
 * What a spec needs of a worker's driver. Throws `invalid_sandbox_config`, naming the first field that no worker can
 * enforce, so that nothing that was asked for is ever ignored. It refuses only by what the workers offer now; before
 * the first one has said so, `unavailable`.
 */
export async function requireAbilities(
  deps: Pick<ControlDeps, 'offers'>,
  spec: SandboxSpec,
): Promise<readonly Ability[]> {
  const needs = requiredAbilities(spec)
  const abilities = [...new Set(needs.map(({ ability }) => ability))]
  if (abilities.length === 0 || hasOne(await deps.offers({ isFresh: false }), abilities)) return abilities
  const offers = await deps.offers({ isFresh: true })
  if (offers.length === 0) {
    throw new Problem('unavailable', { message: 'no worker has said yet what it can enforce', retryAfterSeconds: 1 })
  }
  if (!hasOne(offers, abilities)) refuse(needs, offers)
  return abilities
}

function hasOne(offers: AbilityLists, abilities: readonly Ability[]): boolean {
  return offers.some((offer) => abilities.every((ability) => offer.includes(ability)))
}

function refuse(needs: ReturnType<typeof requiredAbilities>, offers: AbilityLists): never {
  for (const need of needs) {
    if (offers.some((offer) => offer.includes(need.ability))) continue
    throw new Problem('invalid_sandbox_config', {
      message: `${need.field} ${need.why}, and no worker of this installation is`,
      details: {
        field: need.field,
        needs: need.ability,
        why: need.why,
        accepted: 'a request without it; see docs/drivers.md, "Enforced and refused"',
      },
    })
  }
  throw new Problem('invalid_sandbox_config', {
    message: 'no single worker can enforce all that this sandbox asks for',
    details: { field: needs.map(({ field }) => field).join(', '), needs: needs.map(({ ability }) => ability) },
  })
}
