import type { Config } from '../config.ts'
import type { BaseDeps } from '../control/deps.ts'
import { listPlans } from '../control/orgs/plans.ts'

/** Says that the plan of the settings doesn't exist, and which plans do. Null if it exists. */
export async function describeUnknownPlan(
  deps: Pick<BaseDeps, 'db'>,
  { defaultPlan }: Pick<Config, 'defaultPlan'>,
): Promise<string | null> {
  const names = (await listPlans(deps)).map(({ name }) => name)
  if (names.includes(defaultPlan)) return null
  return `SANDYARD_DEFAULT_PLAN is "${defaultPlan}", which is no plan; accepted: ${names.join(', ')}`
}
