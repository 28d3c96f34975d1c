import type { OrgActor } from '../../domain/orgs/caller.ts'
import type { OrgId } from '../../domain/ids.ts'
import type { CertificateAuthority } from '../../domain/network/interception.ts'
import { makeAuthority } from '../../lib/make-authority.ts'
import { UnsealError, type Seal } from '../../lib/seal.ts'
import * as authorities from '../../store/orgs/intercept-authorities.ts'
import { recordEvent } from '../events/record-event.ts'
import type { BaseDeps, WriteDeps } from '../deps.ts'

export type AuthorityDeps = Pick<BaseDeps, 'db' | 'seal' | 'clock' | 'uuids' | 'log'>

type Use = { readonly org_id: OrgId; readonly opened_at: Date }

/**
 * The authority whose certificates the sandbox of a run trusts. The organization gets one with its first such run, and one
 * that can't be unsealed any more is made anew.
 */
export async function authorityOfRun(deps: AuthorityDeps, { org_id, opened_at }: Use): Promise<CertificateAuthority> {
  const found = await deps.db.asOrg(org_id, (q) => authorities.findForRunOpenedAt(q, org_id, opened_at))
  const opened = found === null ? null : openOrNull(deps.seal, found)
  if (opened !== null) return opened
  const made = await makeAuthority('Sandyard sandbox traffic', { nowMs: deps.clock.now().getTime() })
  const row = await deps.db.transaction(org_id, async (tx) => {
    if (found !== null) await authorities.remove(tx, org_id, found.id)
    const id = deps.uuids.next()
    const key_sealed = deps.seal.seal(made.key, sealContext(id))
    await authorities.insert(tx, { id, org_id, certificate: made.certificate, key_sealed, now: deps.clock.now() })
    return authorities.findForRunOpenedAt(tx, org_id, opened_at) // another process may have been faster
  })
  if (found !== null)
    deps.log.error({ org_id }, 'the key of a certificate authority could not be unsealed: made another')
  if (row === null) throw new Error('the organization has no certificate authority')
  return { certificate: row.certificate, key: deps.seal.open(row.key_sealed, sealContext(row.id)) }
}

/** Lets runs that start from now on have a new authority. Open runs keep theirs. */
export async function replaceAuthority(deps: WriteDeps, acting: OrgActor): Promise<void> {
  await deps.db.transaction(acting.org_id, async (tx) => {
    await authorities.replace(tx, acting.org_id, deps.clock.now())
    await recordEvent(deps, tx, { ...acting, event_type: 'intercept_authority_replaced', payload: {} })
  })
}

function openOrNull(seal: Seal, row: authorities.AuthorityRow): CertificateAuthority | null {
  try {
    return { certificate: row.certificate, key: seal.open(row.key_sealed, sealContext(row.id)) }
  } catch (error) {
    if (error instanceof UnsealError) return null
    throw error
  }
}

function sealContext(id: string): string {
  return `intercept-authority:${id}`
}
