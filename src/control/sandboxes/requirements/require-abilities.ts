import type { Ability } from '../../../domain/abilities.ts'
import type { OrgId } from '../../../domain/ids.ts'
import { Problem } from '../../../domain/problem.ts'
import { isolationAbility, type IsolationLevel } from '../../../domain/isolation.ts'
import {
  requiredAbilities,
  requiredDisk,
  SECRETS_NEED,
  type RequiredAbility,
} from '../../../domain/spec/required-abilities.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import { mayServeOrg } from '../../../domain/workers/worker-bounds.ts'
import { makeSingleFlight } from '../../../lib/turns/single-flight.ts'
import * as workers from '../../../store/workers/workers.ts'
import type { BaseDeps, ControlSettings } from '../../deps.ts'

/** The different lists of abilities that workers' drivers report. */
type AbilityLists = readonly (readonly string[])[]

/**
 * Reads the abilities of the drivers of those workers that may run an organization's sandboxes. The result may be a
 * second old unless `isFresh` demands a new read.
 */
export type WorkerAbilities = {
  readonly workerAbilities: (org: OrgId, how: { readonly isFresh: boolean }) => Promise<AbilityLists>
}

export type RequireAbilitiesDeps = WorkerAbilities & {
  readonly settings: Pick<ControlSettings, 'requireIsolation'>
}

/** The mark of a worker whose driver keeps no disks. */
const KEEPS_NO_DISK = 'keeps_no_disk'

const CACHE_MS = 1_000

/** Makes a cached reader of abilities. Without the cache, every create runs one more query (profile of 2026-11). */
export function makeWorkerAbilities({ db, clock }: Pick<BaseDeps, 'db' | 'clock'>): WorkerAbilities['workerAbilities'] {
  let known: readonly { readonly reported: workers.ReportedAbilities; readonly list: readonly string[] }[] = []
  let validUntilMs = Number.NEGATIVE_INFINITY
  const read = async (): Promise<typeof known> => {
    const all = await db.asSystem((q) => workers.listAbilities(q))
    known = all.map((reported) => ({ reported, list: listOf(reported) }))
    validUntilMs = clock.monotonicMs() + CACHE_MS
    return known
  }
  const flight = makeSingleFlight<typeof known>()
  return async (org, { isFresh }) => {
    const isKnown = !isFresh && clock.monotonicMs() < validUntilMs
    const all = isFresh ? await read() : isKnown ? known : await flight.join('abilities', read).result
    return all.filter(({ reported }) => mayServeOrg(reported, org)).map(({ list }) => list)
  }
}

function listOf({ keeps_disks, abilities }: workers.ReportedAbilities): readonly string[] {
  return [...abilities, keeps_disks === false ? KEEPS_NO_DISK : 'kept_disk']
}

/**
 * The abilities that a spec needs from a worker's driver. Throws `invalid_sandbox_config` with the first field that no
 * worker of the organization can enforce, so that no field of a request is ever ignored. Refuses only after a fresh read
 * of the workers' abilities. Throws `unavailable` before the first worker that may serve the organization has reported.
 * The operator's demand for isolation counts like a field.
 */
export async function requireAbilities(
  deps: RequireAbilitiesDeps,
  org: OrgId,
  spec: SandboxSpec,
): Promise<readonly Ability[]> {
  const known = await deps.workerAbilities(org, { isFresh: false })
  const needs = [
    ...requiredAbilities(spec),
    ...operatorsNeeds(deps.settings.requireIsolation ?? null),
    ...(known.some((list) => list.includes(KEEPS_NO_DISK)) ? requiredDisk(spec) : []),
  ]
  return requireWorker(deps, { org, needs, known })
}

/** The same for the first secrets of a sandbox that exists and needs `abilities` already. */
export async function requireSecrets(
  deps: RequireAbilitiesDeps,
  org: OrgId,
  abilities: readonly Ability[],
): Promise<void> {
  const others = abilities.map((ability) => ({
    ability,
    field: 'sandbox',
    why: `needs a worker that is capable of ${ability}`,
  }))
  const known = await deps.workerAbilities(org, { isFresh: false })
  const needs = [SECRETS_NEED, ...others, ...operatorsNeeds(deps.settings.requireIsolation ?? null)]
  await requireWorker(deps, { org, needs, known })
}

type Needs = { readonly org: OrgId; readonly needs: readonly RequiredAbility[]; readonly known: AbilityLists }

async function requireWorker(deps: WorkerAbilities, { org, needs, known }: Needs): Promise<readonly Ability[]> {
  const abilities = [...new Set(needs.map(({ ability }) => ability))]
  if (abilities.length === 0 || someHasAll(known, abilities)) return abilities
  const lists = await deps.workerAbilities(org, { isFresh: true })
  if (lists.length === 0) {
    throw new Problem('unavailable', {
      message: 'no worker that may serve this organization has reported its abilities yet',
      retryAfterSeconds: 1,
    })
  }
  if (!someHasAll(lists, abilities)) refuse(needs, lists)
  return abilities
}

/** What the operator demands for every sandbox. */
function operatorsNeeds(level: IsolationLevel | null): readonly RequiredAbility[] {
  if (level === null) return []
  const why = `needs a worker that is capable of the isolation ${level}`
  return [{ ability: isolationAbility(level), field: 'SANDYARD_REQUIRE_ISOLATION', why }]
}

function someHasAll(lists: AbilityLists, abilities: readonly Ability[]): boolean {
  return lists.some((list) => abilities.every((ability) => list.includes(ability)))
}

function refuse(needs: ReturnType<typeof requiredAbilities>, lists: AbilityLists): never {
  for (const need of needs) {
    if (lists.some((list) => list.includes(need.ability))) continue
    throw new Problem('invalid_sandbox_config', {
      message: `${need.field} ${need.why}, and no worker that may serve this organization is`,
      details: {
        field: need.field,
        needs: need.ability,
        why: need.why,
        accepted: 'a request without it; see docs/drivers.md, "Enforced and refused"',
      },
    })
  }
  throw new Problem('invalid_sandbox_config', {
    message: 'no single worker can enforce all fields of this request',
    details: { field: needs.map(({ field }) => field).join(', '), needs: needs.map(({ ability }) => ability) },
  })
}
