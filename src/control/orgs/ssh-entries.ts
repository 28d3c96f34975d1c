import { asId, type ApiKeyId, type SandboxId } from '../../domain/ids.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { ROLE_OF_SCOPE } from '../../domain/orgs/caller.ts'
import {
  admitsCertificate,
  ALL_SSH_PERMITS,
  type SshCertificate,
  type SshPermits,
} from '../../domain/orgs/ssh-certificate.ts'
import { sshFingerprint } from '../../domain/orgs/ssh-key.ts'
import { UnsealError } from '../../lib/seal.ts'
import * as sshEntries from '../../store/orgs/ssh-entries.ts'
import type { BaseDeps } from '../deps.ts'

/** A caller who may enter a sandbox over SSH, and what the connection may do. */
export type SshEntry = { readonly caller: Caller; readonly sandbox_id: SandboxId; readonly permits: SshPermits }

type EntryDeps = Pick<BaseDeps, 'db' | 'clock'>

/**
 * Finds who enters which sandbox by a plain key. `user` is the slug of a sandbox, or its name, a dot and the slug of its
 * organization. `key` is the encoded public key. Null for an unknown user and for an unknown key alike. The caller must have
 * proved that it has the private key.
 */
export async function findSshEntry({ db }: EntryDeps, user: string, key: Buffer): Promise<SshEntry | null> {
  const fingerprint = sshFingerprint(key)
  const entry = await db.asSystem((q) => sshEntries.findEntry(q, user, { fingerprint, isAuthority: false }))
  return entry === null ? null : entryOf(entry, { fingerprint, label: entry.key_name, permits: ALL_SSH_PERMITS })
}

/**
 * Finds who enters which sandbox by a certificate of an authority of the organization. Its principals name the sandbox as the
 * user name does, or the organization. Both signatures must have been checked.
 */
export async function findCertifiedEntry(
  { db, clock }: EntryDeps,
  user: string,
  { certificate, address }: { readonly certificate: SshCertificate; readonly address: string },
): Promise<SshEntry | null> {
  const fingerprint = sshFingerprint(certificate.authority)
  const entry = await db.asSystem((q) => sshEntries.findEntry(q, user, { fingerprint, isAuthority: true }))
  if (entry === null) return null
  const { org_slug, sandbox_slug, sandbox_name } = entry
  const names = [sandbox_slug, `${sandbox_name}.${org_slug}`, org_slug]
  if (!admitsCertificate(certificate, { now: clock.now(), address, names })) return null
  const label = `${certificate.keyId} (certificate of ${entry.key_name})`
  const own = sshFingerprint(Buffer.from(certificate.key.split(' ')[1] ?? '', 'base64'))
  return entryOf(entry, { fingerprint: own, label, permits: certificate.permits })
}

function entryOf(
  { key_id, org_id, sandbox_id }: sshEntries.SshEntry,
  { permits, ...actor }: { readonly fingerprint: string; readonly label: string; readonly permits: SshPermits },
): SshEntry {
  const caller: Caller = {
    org_id,
    api_key_id: asId<ApiKeyId>(key_id),
    role: ROLE_OF_SCOPE.write,
    scope: 'write',
    actor: { kind: 'ssh_key', key_id, ...actor },
  }
  return { caller, sandbox_id, permits }
}

/** A key pair of SSH, in the formats of OpenSSH. */
export type SshKeyPair = { readonly private: string; readonly public: string }

const HOST_KEY_CONTEXT = 'ssh-host-key'

/**
 * The key by which all server processes of the installation identify themselves. The first process stores what `make`
 * returns. A key that can't be unsealed any more is made anew.
 */
export async function openSshHostKey(
  deps: Pick<BaseDeps, 'db' | 'seal' | 'clock' | 'log'>,
  make: () => SshKeyPair,
): Promise<SshKeyPair> {
  const open = (row: sshEntries.HostKeyRow): SshKeyPair => ({
    private: deps.seal.open(row.key_sealed, HOST_KEY_CONTEXT),
    public: row.public_key,
  })
  const newRow = () => {
    const made = make()
    const key_sealed = deps.seal.seal(made.private, HOST_KEY_CONTEXT)
    return { public_key: made.public, key_sealed, now: deps.clock.now() }
  }
  const read = async (): Promise<sshEntries.HostKeyRow> => {
    const row = await deps.db.asSystem((q) => sshEntries.findHostKey(q))
    if (row !== null) return row
    await deps.db.asSystem((q) => sshEntries.insertHostKey(q, newRow()))
    return read()
  }
  const found = await read()
  try {
    return open(found)
  } catch (error) {
    if (!(error instanceof UnsealError)) throw error
    deps.log.error(
      {},
      'the host key of the SSH server could not be unsealed: made another, which SSH clients warn about',
    )
    await deps.db.asSystem((q) => sshEntries.replaceHostKey(q, found.key_sealed, newRow()))
    return open(await read())
  }
}

/** The fingerprint of the host key. Null if no server process has made it yet. */
export async function readHostFingerprint(deps: Pick<BaseDeps, 'db'>): Promise<string | null> {
  const row = await deps.db.asSystem((q) => sshEntries.findHostKey(q))
  return row === null ? null : sshFingerprint(Buffer.from(row.public_key.split(' ')[1] ?? '', 'base64'))
}
