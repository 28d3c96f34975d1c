import { isActive, type SandboxStatus } from '../sandboxes/lifecycle.ts'
import { defaultPlaceholder } from './secret-rules.ts'
import { hasSameHosts, isSameSecret } from './same-secrets.ts'
import type { HostPattern, Secret } from './secrets.ts'

export const MODIFICATION_POLICIES = ['no_restart', 'next_start', 'restart'] as const
export type ModificationPolicy = (typeof MODIFICATION_POLICIES)[number]

/** A change of one secret, or a new one. An absent field keeps its value, or gets the default of a create. */
export type SecretPatch = { readonly env_var: string; readonly hasValue: boolean } & Partial<Omit<Secret, 'env_var'>>

export type SecretsPatch = {
  readonly policy: ModificationPolicy
  readonly secrets: readonly SecretPatch[]
  readonly removed: readonly string[]
}

export const SECRET_CHANGES = ['added', 'rotated', 'removed', 'hosts_updated', 'placeholder_updated'] as const
export const DISPOSITIONS = ['live', 'next_start', 'requires_restart', 'unsupported'] as const
type Disposition = {
  readonly disposition: (typeof DISPOSITIONS)[number]
  readonly reason?: string
}

export type SecretChange = Disposition & {
  readonly kind: 'secret'
  readonly field: 'secret'
  readonly name: string
  readonly change: (typeof SECRET_CHANGES)[number]
  /** The placeholder before and after the change. */
  readonly before_ref?: string
  readonly after_ref?: string
  readonly allow_hosts: readonly string[]
}
/** A change of what a secret may do, such as where its value is put in. */
export type ConfigChange = Disposition & {
  readonly kind: 'config'
  readonly field: string
  readonly change: 'updated'
}
export type Conflict = { readonly field: string; readonly message: string }

/** What a modification would change, and the secrets of the sandbox after it. */
export type SecretsPlan = {
  readonly changes: readonly (SecretChange | ConfigChange)[]
  readonly conflicts: readonly Conflict[]
  readonly next: readonly Secret[]
}

/** The state of a sandbox that decides how its secrets may change. */
export type SecretsState = {
  readonly secrets: readonly Secret[]
  /** The secrets whose value is known. */
  readonly valued: ReadonlySet<string>
  /** Those of the patch's names that the sandbox's `env` sets. */
  readonly envKeys: readonly string[]
  readonly status: SandboxStatus
  /** The secrets that have changed since the open run got them, because the change waits for the next start. */
  readonly pending: ReadonlySet<string>
}

/** Plans a modification of secrets, as the planner of the public client does. A worker applies live changes. */
export function planSecrets(state: SecretsState, patch: SecretsPatch): SecretsPlan {
  const before = new Map(state.secrets.map((secret) => [secret.env_var, secret]))
  const removed = new Set(patch.removed)
  const patched = new Map(patch.secrets.map((one) => [one.env_var, applyPatch(before.get(one.env_var) ?? null, one)]))
  const kept = state.secrets.filter(({ env_var }) => !removed.has(env_var))
  const added = patch.secrets.flatMap(({ env_var }) => (before.has(env_var) ? [] : (patched.get(env_var) ?? [])))
  const next = [...kept.map((secret) => patched.get(secret.env_var) ?? secret), ...added]
  const classify = (name: string, isPossibleLive: boolean): Disposition =>
    dispositionOf(state, patch, { name, isPossibleLive })
  const changes = [
    ...patch.secrets.flatMap((one) => {
      const after = patched.get(one.env_var)
      return after === undefined
        ? []
        : changesOf(before.get(one.env_var) ?? null, after, { hasValue: one.hasValue, classify })
    }),
    ...[...removed].flatMap((name) => {
      const secret = before.get(name)
      return secret === undefined
        ? []
        : [secretChange('removed', { before: secret, after: null }, classify(name, true))]
    }),
  ]
  return { changes, conflicts: findConflicts(state, patch, next), next }
}

/** The first change that a running sandbox can't get, or null if the plan can be applied. */
export function blockingChange({ changes }: SecretsPlan): SecretChange | ConfigChange | null {
  return changes.find(({ disposition }) => disposition === 'unsupported' || disposition === 'requires_restart') ?? null
}

function applyPatch(before: Secret | null, patched: SecretPatch): Secret {
  const { hasValue: _, ...patch } = patched
  const defaults: Secret = {
    env_var: patch.env_var,
    placeholder: defaultPlaceholder(patch.env_var),
    allowed_hosts: [],
    substitution: { headers: true, basic_auth: true, header_fields: null, query: false, body: false },
    passthrough_hosts: [],
    violation_action: null,
    require_tls_identity: true,
  }
  return { ...(before ?? defaults), ...patch }
}

type Classify = (name: string, isPossibleLive: boolean) => Disposition

function changesOf(
  before: Secret | null,
  after: Secret,
  { hasValue, classify }: { readonly hasValue: boolean; readonly classify: Classify },
): readonly (SecretChange | ConfigChange)[] {
  const name = after.env_var
  if (before === null) return [secretChange('added', { before, after }, classify(name, false))]
  const isRenamed = before.placeholder !== after.placeholder
  const changed = (change: SecretChange['change'], isPossibleLive: boolean): SecretChange =>
    secretChange(change, { before, after }, classify(name, isPossibleLive))
  const { substitution, passthrough_hosts, violation_action, require_tls_identity } = after
  const rules = { substitution, passthrough_hosts, violation_action, require_tls_identity }
  const hasOtherRules = !isSameSecret({ ...before, ...rules }, before)
  return [
    ...(isRenamed ? [changed('placeholder_updated', false)] : []),
    ...(hasValue ? [changed('rotated', !isRenamed)] : []),
    ...(hasSameHosts(before.allowed_hosts, after.allowed_hosts) ? [] : [changed('hosts_updated', !isRenamed)]),
    ...(hasOtherRules
      ? [{ kind: 'config', field: `secret.${name}.policy`, change: 'updated', ...classify(name, false) } as const]
      : []),
  ]
}

function secretChange(
  change: SecretChange['change'],
  { before, after }: { readonly before: Secret | null; readonly after: Secret | null },
  disposition: Disposition,
): SecretChange {
  const secret = after ?? before
  return {
    kind: 'secret',
    field: 'secret',
    name: secret?.env_var ?? '',
    change,
    ...(before === null ? {} : { before_ref: before.placeholder }),
    ...(after === null ? {} : { after_ref: after.placeholder }),
    ...disposition,
    allow_hosts: (secret?.allowed_hosts ?? []).map(hostText),
  }
}

function hostText(host: HostPattern): string {
  return host.type === 'any' ? '*' : host.value
}

function dispositionOf(
  { status, pending }: SecretsState,
  { policy }: SecretsPatch,
  { name, isPossibleLive }: { readonly name: string; readonly isPossibleLive: boolean },
): Disposition {
  if (status === 'starting' || status === 'stopping')
    return { disposition: 'unsupported', reason: `cannot modify while sandbox is ${status}` }
  if (!isActive(status) || policy === 'next_start') return { disposition: 'next_start' }
  if (pending.has(name))
    return { disposition: 'requires_restart', reason: 'an earlier change of this secret waits for the next start' }
  if (isPossibleLive) return { disposition: 'live' }
  return { disposition: 'requires_restart', reason: 'what runs keeps the placeholders and the rules of its start' }
}

function findConflicts(state: SecretsState, patch: SecretsPatch, next: readonly Secret[]): readonly Conflict[] {
  const known = new Set(state.secrets.map(({ env_var }) => env_var))
  const names = patch.secrets.map(({ env_var }) => env_var)
  const messages = [
    ...names.filter((name, index) => names.indexOf(name) !== index).map((name) => `secret ${name} is configured twice`),
    ...names
      .filter((name) => patch.removed.includes(name))
      .map((name) => `secret ${name} is both configured and removed`),
    ...next.flatMap((secret) => {
      const { env_var: name } = secret
      const hasValue = state.valued.has(name) || patch.secrets.some((one) => one.env_var === name && one.hasValue)
      const first = next.find(({ placeholder }) => placeholder === secret.placeholder)
      return [
        ...(hasValue ? [] : [`secret ${name} needs a value`]),
        ...(secret.allowed_hosts.length > 0 ? [] : [`secret ${name} needs at least one allowed host`]),
        ...(first === undefined || first.env_var === name
          ? []
          : [`secrets ${first.env_var} and ${name} have the same placeholder`]),
        ...(known.has(name) || !state.envKeys.includes(name) ? [] : [`env sets ${name} too, so it can't be a secret`]),
      ]
    }),
  ]
  return messages.map((message) => ({ field: 'secret', message }))
}
