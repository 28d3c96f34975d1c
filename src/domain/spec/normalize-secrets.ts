import { snakeCase } from '../casing.ts'
import type { Refuse } from '../refusal.ts'
import type { SecretProjection } from './spec.ts'
import type { HostPatternInput, InjectionInput, SecretInput, SecretsInput, ViolationInput } from './spec-input.ts'

type HostPattern = { readonly type: 'exact' | 'wildcard'; readonly value: string } | { readonly type: 'any' }
type Violation =
  | { readonly type: 'block' | 'block_and_log' | 'block_and_terminate' }
  | { readonly type: 'passthrough'; readonly hosts: readonly HostPattern[] }

/**
 * Normalizes secrets without reading their values. A key of the next client version (0.7) is mapped to the key of the
 * current version that means the same. A key that has no equivalent is refused, and the refusal names it.
 */
export function normalizeSecrets(input: SecretsInput, refuse: Refuse): readonly SecretProjection[] {
  refuseBoth(input, ['on_violation', 'violation_action'], { at: 'network.secrets', refuse })
  return (input.entries ?? []).map((entry, index) =>
    normalizeSecret(entry, { at: `network.secrets.entries[${String(index)}]`, refuse }),
  )
}

type FieldContext = { readonly at: string; readonly refuse: Refuse }

function normalizeSecret(input: SecretInput, context: FieldContext): SecretProjection {
  refuseBoth(input, ['injection', 'substitution'], context)
  refuseBoth(input, ['on_violation', 'violation_action'], context)
  const violation = violationOf(input, context)
  return {
    env_var: input.env_var,
    placeholder: input.placeholder,
    allowed_hosts: (input.allowed_hosts ?? []).map(normalizeHost),
    injection: injectionOf(input),
    ...(violation === null ? {} : { on_violation: violation }),
  }
}

/**
 * Basic authentication is sent in a header, so `headers` of the next client version (0.7) stands for both `headers` and
 * `basic_auth`.
 */
function injectionOf(input: SecretInput): Required<InjectionInput> {
  const { injection = {}, substitution } = input
  if (substitution === undefined) {
    return {
      headers: injection.headers ?? true,
      basic_auth: injection.basic_auth ?? true,
      query_params: injection.query_params ?? false,
      body: injection.body ?? false,
    }
  }
  const headers = substitution.headers ?? true
  return { headers, basic_auth: headers, query_params: substitution.query ?? false, body: substitution.body ?? false }
}

function violationOf(input: SecretInput, { at, refuse }: FieldContext): Violation | null {
  const action = input.on_violation ?? input.violation_action ?? null
  const hosts = input.passthrough_hosts ?? []
  if (hosts.length === 0) return action === null ? null : normalizeViolation(action)
  if (action !== null && action.type !== 'block_and_log' && action.type !== 'BlockAndLog') {
    const accepted = 'passthrough_hosts only with the violation action block_and_log'
    refuse({
      code: 'invalid_sandbox_config',
      field: `${at}.passthrough_hosts`,
      seen: `hosts beside ${action.type}`,
      accepted,
    })
  }
  return { type: 'passthrough', hosts: hosts.map(normalizeHost) }
}

function normalizeViolation(input: ViolationInput): Violation {
  if (input.type === 'passthrough' || input.type === 'Passthrough')
    return { type: 'passthrough', hosts: input.hosts.map(normalizeHost) }
  return { type: snakeCase(['block', 'block_and_log', 'block_and_terminate'], input.type) }
}

function normalizeHost(input: HostPatternInput): HostPattern {
  return 'value' in input ? { type: snakeCase(['exact', 'wildcard'], input.type), value: input.value } : { type: 'any' }
}

function refuseBoth(input: object, [now, next]: readonly [string, string], { at, refuse }: FieldContext): void {
  if (!(now in input) || !(next in input)) return
  refuse({
    code: 'invalid_request',
    field: `${at}.${next}`,
    seen: `${next} beside ${now}`,
    accepted: `${now} or ${next}, not both`,
  })
}
