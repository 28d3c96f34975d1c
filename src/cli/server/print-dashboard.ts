import { createSignInLink } from '../../control/sign-in/links.ts'
import { OPERATOR_ACTOR } from '../../domain/orgs/caller.ts'
import { signInPath } from '../../domain/sign-in/session.ts'
import * as orgs from '../../store/orgs/orgs.ts'
import { printStatus } from '../print-status.ts'
import type { FirstKey } from './first-key.ts'
import type { RunningControl } from './start-control.ts'

/**
 * Prints the address of the dashboard. A link that signs the first owner in is printed with it at a terminal, and where the first
 * key is printed: whoever reads that may do everything. Elsewhere, as in a journal, no secret is printed. `open` gets the link too.
 */
export async function printDashboard(
  { deps, url, hasDashboard }: Pick<RunningControl, 'deps' | 'url' | 'hasDashboard'>,
  first: FirstKey,
  open: ((link: string) => Promise<void>) | null = null,
): Promise<void> {
  if (!hasDashboard) {
    if (open !== null) printStatus('nothing to open: SANDYARD_DASHBOARD is off')
    return
  }
  if (open === null && first.kind !== 'shown' && !process.stdout.isTTY) {
    printStatus(`dashboard on ${url}; \`npx sandyard member login\` prints a link to sign in`)
    return
  }
  const org = await deps.db.asSystem((q) => orgs.findFirst(q))
  if (org === null) return
  const { token } = await createSignInLink(deps, { org_id: org.id, actor: OPERATOR_ACTOR }, null)
  const link = `${url}${signInPath(token)}`
  if (first.kind === 'shown' || process.stdout.isTTY)
    process.stdout.write(`\n# The dashboard. This link signs you in once, within 15 minutes:\n# ${link}\n`)
  await open?.(link)
}
