import type { OrgActor } from '../../domain/orgs/caller.ts'
import { requireMatch, etagOf, type IfMatch } from '../../domain/requests/etag.ts'
import { asId, type CredentialId, type OrgId } from '../../domain/ids.ts'
import { byteLength, isPlainText } from '../../domain/names.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest, refusalProblem } from '../../domain/refusal.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { isRegistryHost, REGISTRY_HOST_RULE } from '../../domain/orgs/registry-host.ts'
import * as credentials from '../../store/orgs/credentials.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { credentialSealContext } from './registry-auth.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from '../requests/idempotency.ts'
import { recordEvent } from '../events/record-event.ts'

/** A credential without its password. The password is sent to workers that pull with it, and to nobody else. */
export type Credential = credentials.CredentialRow

export type NewCredential = {
  readonly host: string
  readonly username: string
  readonly password: string
  readonly attempt?: IdempotentAttempt | null
}

const USERNAME_MAX_BYTES = 256
/** Registry tokens are passwords too, and some are signed documents of a few KiB. */
const PASSWORD_MAX_BYTES = 16 * 1024

// RFC 7617, section 2: neither part may contain control characters, and the username must not contain a colon.
const USERNAME_RULE = `1 to ${String(USERNAME_MAX_BYTES)} bytes of UTF-8 without colons and control characters`
const PASSWORD_RULE = `1 to ${String(PASSWORD_MAX_BYTES)} bytes of UTF-8 without control characters`

/**
 * Saves the organization's credential for a registry host and replaces an earlier one. The password is sealed before it
 * is stored, and no message contains it. Throws `invalid_request` with the invalid field, and `quota_exceeded`.
 */
export async function saveCredential(
  deps: WriteDeps & Pick<BaseDeps, 'seal'>,
  acting: OrgActor,
  input: NewCredential,
): Promise<Credential> {
  const { org_id } = acting
  const { host, username, attempt = null } = input
  if (attempt !== null && attempt.savedNote !== null)
    return await savedByEarlierAttempt(deps, org_id, asId<CredentialId>(attempt.savedNote))
  validateCredential(input)
  const password_sealed = deps.seal.seal(input.password, credentialSealContext(org_id, host))
  return deps.db.transaction(org_id, async (tx) => {
    const id = asId<CredentialId>(deps.uuids.next())
    const now = deps.clock.now()
    const saved = await credentials.save(tx, { id, org_id, host, username, password_sealed, now })
    if (saved === null) throw tooManyOf('registry_credentials')
    await attempt?.saveNote(tx, saved.id)
    const payload = { credential_id: saved.id, host, username }
    await recordEvent(deps, tx, { ...acting, event_type: 'registry_credential_saved', payload })
    return saved
  })
}

/** The credential that an earlier attempt saved, in its current state. */
async function savedByEarlierAttempt(deps: Pick<BaseDeps, 'db'>, org: OrgId, id: CredentialId): Promise<Credential> {
  const found = await deps.db.asOrg(org, (q) => credentials.find(q, org, id))
  if (found === null) throw idempotencyReplyLost('the credential was saved and is gone since')
  return found
}

/** A page of the organization's credentials, newest first. Throws `invalid_request` for a bad cursor. */
export function listCredentials(
  deps: Pick<BaseDeps, 'db'>,
  { org_id }: Pick<OrgActor, 'org_id'>,
  input: PageInput,
): Promise<Page<Credential>> {
  return readPage('registry_credentials', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => credentials.page(q, org_id, after, count)),
  )
}

/** Deletes a credential by its id or its host. Throws `registry_credential_not_found` and `precondition_failed`. */
export async function deleteCredential(
  deps: WriteDeps,
  acting: OrgActor,
  which: { readonly id: CredentialId } | { readonly host: string },
  ifMatch: IfMatch | null = null,
): Promise<void> {
  await deps.db.transaction(acting.org_id, async (tx) => {
    const removed = await credentials.remove(tx, acting.org_id, which)
    if (removed === null) throw new Problem('registry_credential_not_found')
    requireMatch(ifMatch, etagOf(JSON.stringify(removed))) // a rejection rolls the deletion back
    const payload = { credential_id: removed.id, host: removed.host, username: removed.username }
    await recordEvent(deps, tx, { ...acting, event_type: 'registry_credential_deleted', payload })
  })
}

function validateCredential({ host, username, password }: NewCredential): void {
  if (!isRegistryHost(host)) throw invalidRequest('host', host, REGISTRY_HOST_RULE)
  if (!isLine(username, USERNAME_MAX_BYTES) || username.includes(':'))
    throw invalidRequest('username', username, USERNAME_RULE)
  if (!isLine(password, PASSWORD_MAX_BYTES))
    throw refusalProblem({ code: 'invalid_request', field: 'password', seen: null, accepted: PASSWORD_RULE })
}

function isLine(text: string, maxBytes: number): boolean {
  return text !== '' && byteLength(text) <= maxBytes && isPlainText(text)
}
