import { snakeCase } from '../casing.ts'
import type { Refusal, Refuse } from '../refusal.ts'
import { normalizeAction, normalizeHost } from './normalize-secrets.ts'
import { MODIFICATION_POLICIES, type ModificationPolicy, type SecretPatch, type SecretsPatch } from './secret-plan.ts'
import * as rules from './secret-rules.ts'
import type { SecretValues } from './secrets.ts'
import type { EitherCasing } from '../casing.ts'
import type { HostPatternInput, SubstitutionInput, ViolationActionInput } from './spec-input.ts'

type PatchInput = {
  readonly policy?: EitherCasing<ModificationPolicy>
  readonly secrets?: readonly SecretPatchInput[]
  readonly secrets_remove?: readonly string[]
}
type SecretPatchInput = {
  readonly name: string
  readonly value?: string
  readonly material?: { readonly type: EitherCasing<'provided' | 'absent'> }
  readonly placeholder?: string
  readonly allowed_hosts?: readonly HostPatternInput[]
  readonly substitution?: SubstitutionInput
  readonly passthrough_hosts?: readonly HostPatternInput[]
  readonly violation_action?: ViolationActionInput
  readonly require_tls_identity?: boolean
}

/** A modification, and the new values, which are stored sealed. */
export type NormalizedPatch = { readonly patch: SecretsPatch; readonly values: SecretValues }

/** Turns the body of a modification into a patch, or into the refusal of its first invalid field. */
export function normalizeSecretsPatch(input: PatchInput): NormalizedPatch | { readonly refusal: Refusal } {
  const refusals: Refusal[] = []
  const refuse: Refuse = (refusal) => {
    refusals.push(refusal)
  }
  const given = input.secrets ?? []
  const patch: SecretsPatch = {
    policy: snakeCase(MODIFICATION_POLICIES, input.policy ?? 'no_restart'),
    secrets: given.map((one, index) => normalizeSecretPatch(one, { at: `secrets[${String(index)}]`, refuse })),
    removed: input.secrets_remove ?? [],
  }
  const values = new Map(given.flatMap(({ name, value }) => (value === undefined ? [] : [[name, value] as const])))
  const [refusal] = refusals
  return refusal === undefined ? { patch, values } : { refusal }
}

function normalizeSecretPatch(
  input: SecretPatchInput,
  { at, refuse }: { readonly at: string; readonly refuse: Refuse },
): SecretPatch {
  const { name, value, material, placeholder, substitution, violation_action, require_tls_identity } = input
  rules.refuseInvalidNames({ env_var: name, placeholder: placeholder ?? null }, { at, nameOf: 'name', refuse })
  const allowed_hosts = input.allowed_hosts?.map(normalizeHost)
  const passthrough_hosts = input.passthrough_hosts?.map(normalizeHost)
  rules.refuseInvalidHosts(allowed_hosts ?? [], { at: `${at}.allowed_hosts`, refuse })
  rules.refuseInvalidHosts(passthrough_hosts ?? [], { at: `${at}.passthrough_hosts`, refuse })
  const normalized =
    substitution === undefined ? null : rules.normalizeSubstitution(substitution, { at: `${at}.substitution`, refuse })
  if (value !== undefined) rules.refuseInvalidValue(value, normalized, { at: `${at}.value`, refuse })
  return {
    env_var: name,
    hasValue:
      value !== undefined ||
      (material !== undefined && snakeCase(['provided', 'absent'], material.type) === 'provided'),
    ...(placeholder === undefined ? {} : { placeholder }),
    ...(allowed_hosts === undefined ? {} : { allowed_hosts }),
    ...(normalized === null ? {} : { substitution: normalized }),
    ...(passthrough_hosts === undefined ? {} : { passthrough_hosts }),
    ...(violation_action === undefined ? {} : { violation_action: normalizeAction(violation_action) }),
    ...(require_tls_identity === undefined ? {} : { require_tls_identity }),
  }
}
