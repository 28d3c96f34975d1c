import type { SandboxId } from '../../domain/ids.ts'
import { isSameSecret } from '../../domain/spec/same-secrets.ts'
import type { SecretsPlan, SecretsState } from '../../domain/spec/secret-plan.ts'
import { resolveSecrets, type RunSecret, type SecretValues } from '../../domain/spec/secrets.ts'
import { UnsealError, type Seal } from '../../lib/seal.ts'
import type { SecretsRow } from '../../store/sandboxes/sandbox-secrets.ts'
import { openRunSecrets, openSecretValues } from './seal-secrets.ts'

/** A sandbox's secrets with their values. Never log it. */
export type OpenedState = SecretsState & {
  /** Without those that can't be unsealed. They must be given again. */
  readonly values: SecretValues
  /** The secrets that the worker of the open run has, or null. */
  readonly ofRun: readonly RunSecret[] | null
  /** Whether the open run keeps secrets of its own. */
  readonly isKept: boolean
}

/** Unseals what a modification of a sandbox's secrets depends on. */
export function openState(seal: Seal, id: SandboxId, row: SecretsRow): OpenedState {
  const { network, env_keys: envKeys, status, open_run_id: run, run_secrets_sealed } = row
  const values = unsealedOr(new Map(), () => openSecretValues(seal, id, row.secrets_sealed))
  const ofSandbox = resolveSecrets(network, values)
  const isKept = run !== null && run_secrets_sealed !== null
  const ofRun =
    run === null ? null : isKept ? unsealedOr(null, () => openRunSecrets(seal, run, run_secrets_sealed)) : ofSandbox
  return {
    secrets: network.secrets,
    valued: new Set(values.keys()),
    envKeys,
    status,
    pending: isKept ? differences(ofRun ?? [], ofSandbox ?? []) : new Set(),
    values,
    ofRun,
    isKept,
  }
}

/**
 * The secrets that the open run keeps from now on, or null if it goes on as before: with those of its sandbox, or with
 * those that it keeps already. `after` are those of the sandbox after the modification.
 */
export function secretsToKeep(
  { ofRun, isKept, status }: OpenedState,
  {
    changes,
    after,
    isLive,
  }: Pick<SecretsPlan, 'changes'> & { readonly after: OpenedState['ofRun']; readonly isLive: boolean },
): readonly RunSecret[] | null {
  if (ofRun === null || status !== 'running') return null
  if (!isLive) return isKept ? null : ofRun
  if (!isKept) return null
  const changed = new Set(changes.flatMap((change) => (change.kind === 'secret' ? [change.name] : [])))
  return ofRun.flatMap((secret) =>
    changed.has(secret.env_var) ? (after ?? []).filter(({ env_var }) => env_var === secret.env_var) : [secret],
  )
}

function unsealedOr<Opened, Other>(otherwise: Other, open: () => Opened): Opened | Other {
  try {
    return open()
  } catch (error) {
    if (error instanceof UnsealError) return otherwise
    throw error
  }
}

/** The names of secrets that are in one list alone, or that differ. */
function differences(some: readonly RunSecret[], others: readonly RunSecret[]): ReadonlySet<string> {
  const byName = (list: readonly RunSecret[]) => new Map(list.map((secret) => [secret.env_var, secret]))
  const [a, b] = [byName(some), byName(others)]
  return new Set([...a.keys(), ...b.keys()].filter((name) => !isSameSecret(a.get(name), b.get(name))))
}
