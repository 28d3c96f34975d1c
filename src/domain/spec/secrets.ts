import type { SandboxSpec } from './spec.ts'

/**
 * A host that a secret may be sent to. All values are in lower case. A wildcard `*.example.com` also matches
 * `example.com`.
 */
export type HostPattern = { readonly type: 'exact' | 'wildcard'; readonly value: string } | { readonly type: 'any' }

export const VIOLATION_ACTIONS = ['block', 'block_and_log', 'block_and_terminate'] as const
/** What happens to a request that carries the placeholder of a secret to a host that may not get the secret. */
export type ViolationAction = { readonly type: (typeof VIOLATION_ACTIONS)[number] }

/** Where in a request the placeholder is replaced by the value. */
export type Substitution = {
  /** The values of header fields, except the credentials of basic authentication. */
  readonly headers: boolean
  /** The decoded user name and password of `Authorization: Basic`. */
  readonly basic_auth: boolean
  /** In lower case. Only these fields count for `headers` and `basic_auth`. Null: all fields. */
  readonly header_fields: readonly string[] | null
  readonly query: boolean
  readonly body: boolean
}

/**
 * A secret of a sandbox, without its value. The sandbox sees the placeholder in `env_var`. A worker puts the value in
 * on the way out.
 */
export type Secret = {
  readonly env_var: string
  readonly placeholder: string
  readonly allowed_hosts: readonly HostPattern[]
  readonly substitution: Substitution
  /** Hosts that get the placeholder unchanged. */
  readonly passthrough_hosts: readonly HostPattern[]
  /** Null: `SecretDefaults` apply. */
  readonly violation_action: ViolationAction | null
  /** Whether the value is put in only inside TLS whose server was verified. */
  readonly require_tls_identity: boolean
}

/** What applies to the secrets of a sandbox that have no violation action of their own. */
export type SecretDefaults = {
  readonly passthrough_hosts: readonly HostPattern[]
  readonly violation_action: ViolationAction
}

export const NO_SECRET_DEFAULTS: SecretDefaults = {
  passthrough_hosts: [],
  violation_action: { type: 'block_and_log' },
}

/** The values of secrets, by `env_var`. Never log, show or store them in the clear. */
export type SecretValues = ReadonlyMap<string, string>

/** A secret as a worker enforces it: with its value, and with the defaults of the sandbox applied. Never log it. */
export type RunSecret = Omit<Secret, 'violation_action'> & {
  readonly value: string
  readonly violation_action: ViolationAction
}

/**
 * Applies the defaults of a sandbox to its secrets and adds their values. Null if a value is missing. A secret without
 * its value must never take effect, because requests with its placeholder would then leave unjudged.
 */
export function resolveSecrets(network: SandboxSpec['network'], values: SecretValues): readonly RunSecret[] | null {
  const defaults = network.secret_defaults ?? NO_SECRET_DEFAULTS
  const resolved = network.secrets.flatMap((secret): RunSecret[] => {
    const value = values.get(secret.env_var)
    if (value === undefined) return []
    const { violation_action, passthrough_hosts } = secret
    if (violation_action !== null) return [{ ...secret, violation_action, value }]
    const hosts = [...passthrough_hosts, ...defaults.passthrough_hosts]
    return [{ ...secret, passthrough_hosts: hosts, violation_action: defaults.violation_action, value }]
  })
  return resolved.length === network.secrets.length ? resolved : null
}

/** The environment variables that show the placeholders to the processes of a sandbox. */
export function placeholderEnv({ network }: SandboxSpec): SandboxSpec['env'] {
  return network.secrets.map(({ env_var, placeholder }) => ({ key: env_var, value: placeholder }))
}
