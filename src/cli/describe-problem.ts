import { Problem, type ProblemCode } from '../domain/problem.ts'

/** What an operator reads for a problem whose own message names neither the object nor the command that lists it. */
const MESSAGES: Readonly<Partial<Record<ProblemCode, string>>> = {
  api_key_not_found: describeNotFound('key', 'key list --all'),
  ssh_key_not_found: describeNotFound('SSH key', 'ssh-key list'),
  registry_credential_not_found: describeNotFound('credential', 'registry list'),
  snapshot_not_found: describeNotFound('snapshot', 'snapshot list'),
  snapshot_name_already_exists:
    'the organization has a snapshot of this name already; `sandyard snapshot list` shows all',
  webhook_not_found: describeNotFound('webhook', 'webhook list'),
  webhook_delivery_not_found: describeNotFound('delivery of this webhook', 'webhook deliveries WEBHOOK'),
}

/** The message of an operator's command for a problem of the table above. Null for any other error. */
export function describeProblem(error: unknown): string | null {
  return error instanceof Problem ? (MESSAGES[error.code] ?? null) : null
}

function describeNotFound(what: string, list: string): string {
  return `not found: the organization has no such ${what}; \`sandyard ${list}\` shows all`
}
