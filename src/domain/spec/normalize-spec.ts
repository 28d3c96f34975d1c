import { snakeCase } from '../casing.ts'
import { findLabelRefusal } from '../sandboxes/labels.ts'
import { RESTART_LABEL } from '../sandboxes/restart.ts'
import { DISK_MIN_MIB, IMAGE_REFERENCE_MAX_CHARS, MEMORY_MIN_MIB, VCPUS_MIN } from '../requests/request-bounds.ts'
import { isName, isSlug, NAME_RULE, SLUG_RULE } from '../names.ts'
import { normalizeMounts } from './normalize-mounts.ts'
import { normalizeNetwork } from './normalize-network.ts'
import { normalizeSecrets } from './normalize-secrets.ts'
import { normalizeTls } from './normalize-tls.ts'
import type { SecretValues } from './secrets.ts'
import { normalizePatches } from './normalize-patches.ts'
import { normalizeEnv, normalizeInit, normalizeRlimits, normalizeRuntime } from './normalize-runtime.ts'
import { describeSeen, type Refusal, type Refuse } from '../refusal.ts'
import { PULL_POLICIES, SECURITY_PROFILES, type RegistrySelection, type Resources, type SandboxSpec } from './spec.ts'
import type { RegistryInput, ResourcesInput, SpecInput } from './spec-input.ts'

/**
 * The contents of a create body, with every default filled in. If `name` or `slug` is null, the service chooses one.
 */
export type NormalizedSpec = {
  readonly spec: SandboxSpec
  readonly name: string | null
  readonly slug: string | null
  readonly registry: RegistrySelection
  /** The values of `spec.network.secrets`. */
  readonly secretValues: SecretValues
  /** The key in PEM of the authority in `spec.network.tls`. Null: the request gave none. */
  readonly interceptKey: string | null
}

/**
 * Turns a create body into the specification that is stored, or into the refusal of its first invalid field. A
 * normalized specification normalizes to itself. Enums may be in snake_case or PascalCase. An image may be an object or
 * a string. The next client version (0.7) sends `source` with `reference`, which is accepted too. For `source: disk_snapshot`, pass
 * the snapshot that `snapshotNameOf` names; without it, the specification has an empty image.
 */
export function normalizeSpec(
  input: SpecInput,
  snapshot: SnapshotOfSpec | null = null,
): { readonly normalized: NormalizedSpec } | { readonly refusal: Refusal } {
  const refusals: Refusal[] = []
  const refuse: Refuse = (refusal) => {
    refusals.push(refusal)
  }
  const labels = input.labels ?? {}
  const badLabels = findLabelRefusal(labels, 'labels')
  if (badLabels !== null) refuse(badLabels)
  if (labels[RESTART_LABEL] !== undefined && input.lifecycle?.ephemeral === true)
    refuse({
      code: 'invalid_request',
      field: `labels.${RESTART_LABEL}`,
      seen: 'a restart policy of an ephemeral sandbox, which is deleted when its run ends',
      accepted: 'no restart policy, or lifecycle.ephemeral false',
    })
  const env = normalizeEnv(input.env ?? [], 'env', refuse)
  const secrets = normalizeSecrets(input.network?.secrets ?? {}, { envKeys: env.map(({ key }) => key), refuse })
  const tls = normalizeTls(input.network?.tls ?? null, { hasSecrets: secrets.secrets.length > 0, refuse })
  const normalized: NormalizedSpec = {
    name: normalizeName(input.name ?? '', refuse),
    slug: normalizeSlug(input.slug ?? null, refuse),
    registry: normalizeRegistry(input.registry ?? { mode: 'auto' }),
    secretValues: secrets.values,
    interceptKey: tls.key,
    spec: {
      image: isFromSnapshot(input) ? normalizeSnapshot(input, snapshot, refuse) : normalizeImage(input, refuse),
      pull_policy: snakeCase(PULL_POLICIES, input.pull_policy ?? 'if_missing'),
      resources: normalizeResources(input.resources ?? {}, refuse),
      runtime: normalizeRuntime(input.runtime ?? {}, refuse),
      env,
      labels,
      rlimits: normalizeRlimits(input.rlimits ?? [], refuse),
      mounts: normalizeMounts(input.mounts ?? [], refuse),
      patches: normalizePatches(input.patches ?? [], refuse),
      network: normalizeNetwork(input.network ?? {}, { ...secrets, tls: tls.tls }, refuse),
      init: normalizeInit(input.init ?? null, refuse),
      security_profile: snakeCase(SECURITY_PROFILES, input.security_profile ?? 'default'),
      lifecycle: {
        ephemeral: input.lifecycle?.ephemeral ?? false,
        idle_timeout_secs: input.lifecycle?.idle_timeout_secs ?? null,
        max_duration_secs: input.lifecycle?.max_duration_secs ?? null,
      },
    },
  }
  const [refusal] = refusals
  return refusal === undefined ? { normalized } : { refusal }
}

function normalizeName(name: string, refuse: Refuse): string | null {
  if (name === '') return null
  if (!isName(name)) refuse({ code: 'invalid_request', field: 'name', seen: describeSeen(name), accepted: NAME_RULE })
  return name
}

function normalizeSlug(slug: string | null, refuse: Refuse): string | null {
  if (slug !== null && !isSlug(slug)) {
    refuse({ code: 'invalid_request', field: 'slug', seen: describeSeen(slug), accepted: SLUG_RULE })
  }
  return slug
}

/** What a specification takes from the snapshot that it is made from. */
export type SnapshotOfSpec = { readonly image: string }

/** The id or the name of the snapshot that a create body names. Null: it names none. */
export function snapshotNameOf({ source, disk_snapshot_ref: ref }: SpecInput): string | null {
  return isFromSnapshot({ source }) && ref !== undefined && 'id' in ref ? ref.id : null
}

function isFromSnapshot({ source }: { readonly source?: SpecInput['source'] | undefined }): boolean {
  return source === 'disk_snapshot' || source === 'DiskSnapshot'
}

/** Refuses what a snapshot has already. Returns the snapshot's image. */
function normalizeSnapshot(input: SpecInput, snapshot: SnapshotOfSpec | null, refuse: Refuse): string {
  const { image, reference, patches = [], resources = {}, disk_snapshot_ref: ref } = input
  const refuseSeen = (field: string, seen: unknown, accepted: string): void => {
    refuse({ code: 'invalid_request', field, seen: describeSeen(seen), accepted })
  }
  if (ref === undefined) refuseSeen('disk_snapshot_ref', ref, '{"type":"managed","id":"…"}')
  else if ('path' in ref) refuseSeen('disk_snapshot_ref.type', ref.type, '"managed"')
  if (image !== undefined) refuseSeen('image', image, 'no image beside a snapshot, which has one')
  if (reference !== undefined) refuseSeen('reference', reference, 'no reference beside a snapshot, which has an image')
  if (patches.length > 0) refuseSeen('patches', patches, 'no patches of a snapshot, whose files are there already')
  if (typeof resources.disk_size_mib === 'number')
    refuseSeen('resources.disk_size_mib', resources.disk_size_mib, 'no size: the disk has the size of the snapshot')
  return snapshot?.image ?? ''
}

const IMAGE_REFERENCE = /^[\x21-\x7e]+$/

function normalizeImage(input: SpecInput, refuse: Refuse): string {
  const { image, source, reference } = input
  if (input.disk_snapshot_ref !== undefined)
    refuse({
      code: 'invalid_request',
      field: 'disk_snapshot_ref',
      seen: 'a snapshot beside an image',
      accepted: 'disk_snapshot_ref only with source "disk_snapshot"',
    })
  const accepted = 'an image as {"type":"oci","reference":"…"} or as a string'
  if (image === undefined && reference === undefined) {
    refuse({ code: 'invalid_request', field: 'image', seen: 'nothing', accepted })
    return ''
  }
  if (image !== undefined && (reference !== undefined || source !== undefined)) {
    const field = reference === undefined ? 'source' : 'reference'
    refuse({
      code: 'invalid_request',
      field,
      seen: 'a second source beside image',
      accepted: 'either image, or source with reference',
    })
  }
  if (image === undefined && source === undefined) {
    refuse({ code: 'invalid_request', field: 'source', seen: 'nothing', accepted: '"oci" beside reference' })
  }
  const text = image === undefined ? (reference ?? '') : typeof image === 'string' ? image : image.reference
  if (!IMAGE_REFERENCE.test(text) || text.length > IMAGE_REFERENCE_MAX_CHARS) {
    const field = image === undefined ? 'reference' : typeof image === 'string' ? 'image' : 'image.reference'
    const rule = `an OCI image reference of at most ${String(IMAGE_REFERENCE_MAX_CHARS)} printable characters`
    refuse({ code: 'invalid_request', field, seen: describeSeen(text), accepted: rule })
  }
  return text
}

function normalizeResources(input: ResourcesInput, refuse: Refuse): Resources {
  const resources = {
    memory_mib: input.memory_mib ?? 512,
    vcpus: input.vcpus ?? 1,
    disk_size_mib: input.disk_size_mib ?? null,
  }
  const minima = { memory_mib: MEMORY_MIN_MIB, vcpus: VCPUS_MIN, disk_size_mib: DISK_MIN_MIB }
  for (const key of ['memory_mib', 'vcpus', 'disk_size_mib'] as const) {
    const amount = resources[key]
    if (amount === null || amount >= minima[key]) continue
    const accepted = `at least ${String(minima[key])}`
    refuse({ code: 'invalid_request', field: `resources.${key}`, seen: String(amount), accepted })
  }
  return resources
}

function normalizeRegistry(input: RegistryInput): RegistrySelection {
  switch (input.mode) {
    case 'specific':
    case 'Specific':
      return { mode: 'specific', credential_id: input.credential_id }
    case 'inline':
    case 'Inline':
      return { mode: 'inline', username: input.username, password: input.password }
    default:
      return { mode: snakeCase(['auto', 'anonymous'], input.mode) }
  }
}
