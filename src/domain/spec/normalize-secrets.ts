import type { Refuse } from '../refusal.ts'
import { snakeCase } from '../casing.ts'
import {
  NO_SECRET_DEFAULTS,
  VIOLATION_ACTIONS,
  type HostPattern,
  type Secret,
  type SecretDefaults,
  type SecretValues,
  type Substitution,
  type ViolationAction,
} from './secrets.ts'
import * as rules from './secret-rules.ts'
import type { SecretInput, SecretsInput, ViolationActionInput, ViolationInput } from './spec-input.ts'

/** The secrets of a create body: what is stored and shown, and the values, which are stored sealed. */
export type NormalizedSecrets = {
  readonly secrets: readonly Secret[]
  readonly defaults: SecretDefaults
  readonly values: SecretValues
}

/**
 * Normalizes secrets in the spelling of either client version: `injection` and `on_violation` (0.6), or `substitution`,
 * `passthrough_hosts` and `violation_action` (0.7). One object must not use both. `envKeys` are the variables that the
 * body sets itself.
 */
export function normalizeSecrets(
  input: SecretsInput,
  { envKeys, refuse }: { readonly envKeys: readonly string[]; readonly refuse: Refuse },
): NormalizedSecrets {
  const at = 'network.secrets'
  const entries = input.entries ?? []
  const secrets = entries.map((entry, index) => normalizeSecret(entry, { at: entryAt(index), refuse }))
  secrets.forEach((secret, index) => {
    if (envKeys.includes(secret.env_var)) {
      const accepted = 'a variable that env does not set, because a secret sets its variable to the placeholder'
      const field = `${entryAt(index)}.env_var`
      refuse({ code: 'invalid_sandbox_config', field, seen: 'a variable that env sets too', accepted })
    }
  })
  rules.refuseDoubles(secrets, { at: (index) => entryAt(index), refuse })
  const violation = violationOf(input, { at, refuse })
  return {
    secrets,
    defaults: { ...violation, violation_action: violation.violation_action ?? NO_SECRET_DEFAULTS.violation_action },
    values: new Map(entries.map(({ env_var, value = '' }) => [env_var, value])),
  }
}

function entryAt(index: number): string {
  return `network.secrets.entries[${String(index)}]`
}

type FieldContext = { readonly at: string; readonly refuse: Refuse }

function normalizeSecret(input: SecretInput, context: FieldContext): Secret {
  const secret: Secret = {
    env_var: input.env_var,
    placeholder: input.placeholder ?? rules.defaultPlaceholder(input.env_var),
    allowed_hosts: (input.allowed_hosts ?? []).map(normalizeHost),
    substitution: substitutionOf(input, context),
    ...violationOf(input, context),
    require_tls_identity: input.require_tls_identity ?? true,
  }
  rules.refuseInvalidSecret(secret, context)
  refuseMissingValue(input, context)
  rules.refuseInvalidValue(input.value ?? '', secret.substitution, {
    at: `${context.at}.value`,
    refuse: context.refuse,
  })
  return secret
}

/** A value that stays where the client runs can't be put in by a worker. */
function refuseMissingValue({ value = '', source = null }: SecretInput, { at, refuse }: FieldContext): void {
  if (source === null) return
  const where = rules.SOURCES[snakeCase(['env', 'store'], source.type)]
  if (value === '') {
    const seen = `empty, with the value in ${where} of the client's machine`
    const accepted = 'the value itself: this server can read nothing there'
    refuse({ code: 'invalid_sandbox_config', field: `${at}.value`, seen, accepted })
  } else {
    const accepted = 'no source beside a value'
    refuse({ code: 'invalid_request', field: `${at}.source`, seen: `${where} of the client's machine`, accepted })
  }
}

/** Basic authentication is a header, so `headers` of the later spelling stands for both. */
function substitutionOf(input: SecretInput, { at, refuse }: FieldContext): Substitution {
  refuseBoth(input, ['injection', 'substitution'], { at, refuse })
  const { injection, substitution } = input
  if (substitution !== undefined) return rules.normalizeSubstitution(substitution, { at: `${at}.substitution`, refuse })
  const { headers = true, basic_auth = true, query_params = false, body = false } = injection ?? {}
  const normalized = { headers, basic_auth, header_fields: null, query: query_params, body }
  rules.refuseInvalidSubstitution(normalized, { at: `${at}.injection`, refuse })
  return normalized
}

/**
 * The action and the hosts that get the placeholder unchanged. In the earlier spelling, `passthrough` is an action, and
 * a secret with any action ignores the one for all secrets.
 */
function violationOf(
  input: Pick<SecretInput, 'on_violation' | 'violation_action' | 'passthrough_hosts'>,
  { at, refuse }: FieldContext,
): { readonly passthrough_hosts: readonly HostPattern[]; readonly violation_action: ViolationAction | null } {
  refuseBoth(input, ['on_violation', 'violation_action'], { at, refuse })
  refuseBoth(input, ['on_violation', 'passthrough_hosts'], { at, refuse })
  const { on_violation = null, violation_action = null, passthrough_hosts = [] } = input
  const isPassthrough = on_violation !== null && isPassthroughInput(on_violation)
  const hosts = (isPassthrough ? on_violation.hosts : passthrough_hosts).map(normalizeHost)
  rules.refuseInvalidHosts(hosts, {
    at: isPassthrough ? `${at}.on_violation.hosts` : `${at}.passthrough_hosts`,
    refuse,
  })
  if (isPassthrough) return { passthrough_hosts: hosts, violation_action: NO_SECRET_DEFAULTS.violation_action }
  const action = on_violation ?? violation_action
  return { passthrough_hosts: hosts, violation_action: action === null ? null : normalizeAction(action) }
}

function isPassthroughInput(input: ViolationInput): input is Extract<ViolationInput, { readonly hosts: unknown }> {
  return 'hosts' in input
}

/** Normalizes an action, which may be in snake_case or PascalCase. */
export function normalizeAction({ type }: ViolationActionInput): ViolationAction {
  return { type: snakeCase(VIOLATION_ACTIONS, type) }
}

/** Normalizes a host. Host names don't differ in case, and a final dot means the root of the name. */
export function normalizeHost(input: NonNullable<SecretInput['allowed_hosts']>[number]): HostPattern {
  if (!('value' in input)) return { type: 'any' }
  const value = input.value.toLowerCase().replace(/\.$/, '')
  return { type: snakeCase(['exact', 'wildcard'], input.type), value }
}

function refuseBoth(input: object, [earlier, later]: readonly [string, string], { at, refuse }: FieldContext): void {
  if (!isPresent(input, earlier) || !isPresent(input, later)) return
  refuse({
    code: 'invalid_request',
    field: `${at}.${later}`,
    seen: `${later} beside ${earlier}`,
    accepted: `${earlier} or ${later}, not both`,
  })
}

function isPresent(input: object, key: string): boolean {
  return key in input && (input as Readonly<Record<string, unknown>>)[key] !== undefined
}
