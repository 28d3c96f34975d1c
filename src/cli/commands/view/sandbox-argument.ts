import type { Command } from 'commander'
import { findSandbox, type SandboxCandidate } from '../../../control/sandboxes/find-sandbox.ts'
import type { OrgId } from '../../../domain/ids.ts'
import { DURATION_RULE, parseDurationMs } from '../../../domain/duration.ts'
import { UsageError, type Call } from '../../command.ts'
import { findOrg, type OperatorDeps } from '../operator.ts'

// The arguments and flags that the commands about sandboxes of all organizations share.

export const SANDBOX_HELP =
  '\nSANDBOX is an id, the beginning of an id, a slug or a name. If several organizations have the name, add --org.'

/** Adds `--org`, which restricts a command to one organization. */
export function addOrgFilter(command: Command): Command {
  return command.option('--org <slug>', 'only this organization; all unless given')
}

/** Reads `--org`. Returns null if it is not given. */
export async function readOrgFilter({ db }: Pick<OperatorDeps, 'db'>, { texts }: Call): Promise<OrgId | null> {
  const slug = texts['org']
  return slug === undefined ? null : (await findOrg(db, slug)).id
}

/** Finds the sandbox that the first argument names. */
export async function readSandboxArgument(deps: Pick<OperatorDeps, 'db'>, call: Call): Promise<SandboxCandidate> {
  return findSandbox(deps, call.args[0] ?? '', await readOrgFilter(deps, call))
}

const INSTANT = /^\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:\d{2}))?$/

/** Reads `--since`: an instant, a day, or a duration before now. Returns null if it is not given. */
export function readSince({ texts }: Call, now: Date): Date | null {
  const text = texts['since']
  if (text === undefined) return null
  const agoMs = parseDurationMs(text)
  if (agoMs !== null) return new Date(now.getTime() - agoMs)
  const instant = INSTANT.test(text) ? new Date(text) : null
  if (instant === null || Number.isNaN(instant.getTime()))
    throw new UsageError(`--since takes an instant such as 2028-02-29T12:00:00Z, a day, or ${DURATION_RULE}`)
  return instant
}

/** Reads a flag that takes a whole number from 1 to `max`. Returns null if it is not given. */
export function readCount({ texts }: Call, flag: string, max: number): number | null {
  const text = texts[flag]
  if (text === undefined) return null
  const count = /^\d{1,9}$/.test(text) ? Number(text) : 0
  if (count < 1 || count > max) throw new UsageError(`--${flag} takes a whole number from 1 to ${String(max)}`)
  return count
}
