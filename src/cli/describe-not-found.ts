import { Problem, type ProblemCode } from '../domain/problem.ts'

/** What the operator asked for, and the command that lists what there is, by the code of the problem. */
const LISTS: Readonly<Partial<Record<ProblemCode, readonly [what: string, list: string]>>> = {
  api_key_not_found: ['key', 'key list --all'],
  ssh_key_not_found: ['SSH key', 'ssh-key list'],
  registry_credential_not_found: ['credential', 'registry list'],
  snapshot_not_found: ['snapshot', 'snapshot list'],
  webhook_not_found: ['webhook', 'webhook list'],
  webhook_delivery_not_found: ['delivery of this webhook', 'webhook deliveries WEBHOOK'],
}

/** Says what an operator's command did not find, and which command lists it. Null for any other error. */
export function describeNotFound(error: unknown): string | null {
  const entry = error instanceof Problem ? LISTS[error.code] : undefined
  if (entry === undefined) return null
  const [what, list] = entry
  return `not found: the organization has no such ${what}; \`sandyard ${list}\` shows all`
}
