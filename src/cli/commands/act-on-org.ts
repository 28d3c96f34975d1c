import type { Acting } from '../../domain/orgs/caller.ts'
import { borrowControl, type BorrowedControl } from './borrow-control.ts'
import { chooseOrg, operatorOf } from './choose-org.ts'
import type { Call } from './command.ts'

/** What a command does to an organization. */
export type Act = (control: BorrowedControl, acting: Acting) => Promise<void>

/** Does it to the organization that the call is about, as an operator; answers the exit code. */
export async function actOnOrg({ config, texts }: Call, act: Act): Promise<number> {
  await using control = await borrowControl(config)
  await act(control, operatorOf(await chooseOrg(control.db, texts['org'])))
  return 0
}
