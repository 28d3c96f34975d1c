import { asId, type ApiKeyId, type SandboxId } from '../../domain/ids.ts'
import type { Caller } from '../../domain/orgs/caller.ts'
import { ROLE_OF_SCOPE } from '../../domain/orgs/caller.ts'
import { sshFingerprint } from '../../domain/orgs/ssh-key.ts'
import { UnsealError } from '../../lib/seal.ts'
import * as sshEntries from '../../store/orgs/ssh-entries.ts'
import type { BaseDeps } from '../deps.ts'

/** A caller who may enter a sandbox over SSH. */
export type SshEntry = { readonly caller: Caller; readonly sandbox_id: SandboxId }

/**
 * Finds who enters which sandbox. `user` is the slug of a sandbox, or its name, a dot and the slug of its organization.
 * `key` is the encoded public key. Null for an unknown user and for an unknown key alike. The caller must have proved that
 * it has the private key.
 */
export async function findSshEntry(deps: Pick<BaseDeps, 'db'>, user: string, key: Buffer): Promise<SshEntry | null> {
  const fingerprint = sshFingerprint(key)
  const entry = await deps.db.asSystem((q) => sshEntries.findEntry(q, user, fingerprint))
  if (entry === null) return null
  const { key_id, key_name, org_id, sandbox_id } = entry
  const caller: Caller = {
    org_id,
    api_key_id: asId<ApiKeyId>(key_id),
    role: ROLE_OF_SCOPE.write,
    scope: 'write',
    actor: { kind: 'ssh_key', key_id, fingerprint, label: key_name },
  }
  return { caller, sandbox_id }
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
