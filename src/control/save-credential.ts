import { asId, type CredentialId } from '../domain/ids.ts'
import * as events from '../store/events.ts'
import * as orgs from '../store/orgs.ts'
import type { ControlDeps } from './deps.ts'
import { credentialSealContext } from './registry-auth.ts'
import { SYSTEM } from './transition.ts'

/**
 * Saves the first organization's credential for a registry host, in place of an earlier one for it. The password is
 * sealed before it reaches a table. Answers the credential's id.
 */
export async function saveCredential(
  deps: Pick<ControlDeps, 'db' | 'clock' | 'uuids' | 'seal'>,
  input: { readonly host: string; readonly username: string; readonly password: string },
): Promise<CredentialId> {
  return deps.db.transaction('system', async (tx) => {
    const org = await orgs.first(tx)
    if (org === null) throw new Error('there is no organization yet: start the server once')
    const { host, username } = input
    const now = deps.clock.now()
    const password_sealed = deps.seal.seal(input.password, credentialSealContext(org.id, host))
    const made = asId<CredentialId>(deps.uuids.next())
    const id = await orgs.saveCredential(tx, { id: made, org_id: org.id, host, username, password_sealed, now })
    await events.insertMany(tx, [
      {
        id: deps.uuids.next(),
        org_id: org.id,
        timestamp: now,
        event_type: 'registry_credential_saved',
        sandbox_id: null,
        actor: SYSTEM,
        payload: { credential_id: id, host, username },
      },
    ])
    return id
  })
}
