import { asId, type SshKeyId } from '../../domain/ids.ts'
import { isName, NAME_RULE } from '../../domain/names.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { tooManyOf } from '../../domain/org-maxima.ts'
import { parseSshKeyLine, SSH_KEY_RULE } from '../../domain/orgs/ssh-key.ts'
import { Problem } from '../../domain/problem.ts'
import { invalidRequest, refusalProblem } from '../../domain/refusal.ts'
import { etagOf, requireMatch, type IfMatch } from '../../domain/requests/etag.ts'
import { violatedConstraint } from '../../store/postgres/database.ts'
import * as sshKeys from '../../store/orgs/ssh-keys.ts'
import { notifyAtCommit } from '../../store/postgres/notification-connection.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'
import { recordEvent } from '../events/record-event.ts'
import { idempotencyReplyLost, type IdempotentAttempt } from '../requests/idempotency.ts'
import { readPage, type Page, type PageInput } from '../requests/page.ts'
import { sshKeyTopic } from '../topics.ts'

export type SshKey = sshKeys.SshKeyRow

export type NewSshKey = {
  readonly name: string
  /** A line of an OpenSSH public key file, or of an authority. Its comment is not stored. */
  readonly public_key: string
  readonly attempt?: IdempotentAttempt | null
}

/**
 * Adds a public key, with which its owner enters the organization's sandboxes over SSH. Throws `invalid_request`, `quota_exceeded`,
 * and `ssh_key_already_exists` for a key that the organization has.
 */
export async function addSshKey(deps: WriteDeps, acting: OrgActor, input: NewSshKey): Promise<SshKey> {
  const { org_id } = acting
  const { name, attempt = null } = input
  if (attempt !== null && attempt.savedNote !== null) {
    const id = asId<SshKeyId>(attempt.savedNote)
    const found = await deps.db.asOrg(org_id, (q) => sshKeys.find(q, org_id, id))
    if (found === null) throw idempotencyReplyLost('the key was added and is gone since')
    return found
  }
  if (!isName(name)) throw invalidRequest('name', name, NAME_RULE)
  const parsed = parseSshKeyLine(input.public_key)
  if (parsed === null)
    throw refusalProblem({ code: 'invalid_request', field: 'public_key', seen: null, accepted: SSH_KEY_RULE })
  const id = asId<SshKeyId>(deps.uuids.next())
  const { fingerprint, text: public_key } = parsed
  const key = { id, name, fingerprint, public_key, created_at: deps.clock.now() }
  try {
    await deps.db.transaction(org_id, async (tx) => {
      if (!(await sshKeys.insert(tx, { ...key, org_id }))) throw tooManyOf('ssh_keys')
      await attempt?.saveNote(tx, id)
      const payload = { ssh_key_id: id, name, fingerprint }
      await recordEvent(deps, tx, { ...acting, event_type: 'ssh_key_added', payload })
    })
  } catch (error) {
    if (violatedConstraint(error) !== 'ssh_keys_org_fingerprint_key') throw error
    throw new Problem('ssh_key_already_exists', {
      message: `ssh key already exists: the organization has a key with the fingerprint ${fingerprint}`,
      cause: error,
    })
  }
  return key
}

/** A page of the organization's SSH keys, newest first. Throws `invalid_request` for a bad cursor. */
export function listSshKeys(
  deps: Pick<BaseDeps, 'db'>,
  { org_id }: Pick<OrgActor, 'org_id'>,
  input: PageInput,
): Promise<Page<SshKey>> {
  return readPage('ssh_keys', input, (after, count) =>
    deps.db.asOrg(org_id, (q) => sshKeys.page(q, org_id, after, count)),
  )
}

/** An SSH key of the organization. Throws `ssh_key_not_found`. */
export async function getSshKey(
  deps: Pick<BaseDeps, 'db'>,
  { org_id }: Pick<OrgActor, 'org_id'>,
  id: SshKeyId,
): Promise<SshKey> {
  const found = await deps.db.asOrg(org_id, (q) => sshKeys.find(q, org_id, id))
  if (found === null) throw new Problem('ssh_key_not_found')
  return found
}

/**
 * Removes an SSH key by its id or its fingerprint. Its open connections end within a second. Throws `ssh_key_not_found` and
 * `precondition_failed`.
 */
export async function removeSshKey(
  deps: WriteDeps,
  acting: OrgActor,
  which: { readonly id: SshKeyId } | { readonly fingerprint: string },
  ifMatch: IfMatch | null = null,
): Promise<SshKey> {
  return await deps.db.transaction(acting.org_id, async (tx) => {
    const removed = await sshKeys.remove(tx, acting.org_id, which)
    if (removed === null) throw new Problem('ssh_key_not_found')
    requireMatch(ifMatch, etagOf(JSON.stringify(removed))) // a rejection rolls the deletion back
    const payload = { ssh_key_id: removed.id, name: removed.name, fingerprint: removed.fingerprint }
    await recordEvent(deps, tx, { ...acting, event_type: 'ssh_key_removed', payload })
    await notifyAtCommit(tx, [sshKeyTopic(removed.id)]) // ends the open connections of the key
    return removed
  })
}
