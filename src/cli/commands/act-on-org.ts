import type { OrgActor } from '../../domain/orgs/caller.ts'
import { openOperatorDeps, type OperatorDeps } from './borrow-control.ts'
import { findOrg, asOperator } from './choose-org.ts'
import type { Call } from './command.ts'

/** What a command does to an organization. */
export type OrgAction = (control: OperatorDeps, acting: OrgActor) => Promise<void>

/** Does it to the organization that the call is about, as an operator; answers the exit code. */
export async function runOnOrg({ config, texts }: Call, act: OrgAction): Promise<number> {
  await using control = await openOperatorDeps(config)
  await act(control, asOperator(await findOrg(control.db, texts['org'])))
  return 0
}
