import * as limits from '../domain/requests/request-bounds.ts'

/**
 * The patterns and lengths of fields that have a rule of their own, for the OpenAPI document. The rules are code in
 * `src/domain`, whose refusals explain more than "does not match the pattern".
 */
const SLUG = '^[a-z0-9]+(?:-[a-z0-9]+)*$'
/** Without control characters (`\p{Cc}`). */
const PLAIN = '^[^\\u0000-\\u001f\\u007f-\\u009f]*$'
const slug = { minLength: limits.SLUG_MIN_CHARS, maxLength: limits.SLUG_MAX_CHARS, pattern: SLUG }
/** The limit is in bytes of UTF-8, of which a character has at least one. */
const name = { minLength: 1, maxLength: limits.NAME_MAX_BYTES, pattern: PLAIN }
const labels = {
  maxProperties: limits.LABELS_MAX,
  propertyNames: { minLength: 1, maxLength: limits.LABEL_KEY_MAX_BYTES, pattern: PLAIN },
  additionalProperties: { type: 'string', maxLength: limits.LABEL_VALUE_MAX_BYTES, pattern: PLAIN },
}
const guestPath = { minLength: 1, maxLength: limits.PATH_MAX_BYTES, pattern: '^/[^\\u0000]*$' }
const reference = { minLength: 1, maxLength: limits.IMAGE_REFERENCE_MAX_CHARS, pattern: '^[\\x21-\\x7e]+$' }

export const BOUNDS: Readonly<Record<string, object>> = {
  'CreateApiKeyInput.name': name,
  'CreateSandboxInput.labels': labels,
  'CreateSandboxInput.name': { ...name, minLength: 0 },
  'CreateSandboxInput.reference': reference,
  'CreateSandboxInput.slug': slug,
  'CreateVolume.labels': labels,
  'CreateVolume.name': { ...slug, minLength: 1 },
  'EnvVar.key': { minLength: 1, pattern: '^[^=\\u0000]+$' },
  'MountInputBind.guest': guestPath,
  'MountInputDiskImage.guest': guestPath,
  'MountInputNamed.guest': guestPath,
  'MountInputTmpfs.guest': guestPath,
  'MountInputBind.quota_mib': { minimum: 1 },
  'MountInputTmpfs.size_mib': { minimum: 1 },
  'ResourcesInput.disk_size_mib': { minimum: limits.DISK_MIN_MIB },
  'ResourcesInput.memory_mib': { minimum: limits.MEMORY_MIN_MIB },
  'ResourcesInput.vcpus': { minimum: limits.VCPUS_MIN },
  'RuntimeInput.hostname': {
    maxLength: limits.HOSTNAME_MAX_BYTES,
    pattern: '^(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?)?$',
  },
  'SandboxPatch.name': name,
  'SandboxPatch.slug': slug,
  'SaveCredentialInput.host': { minLength: 1, maxLength: 255 },
  'VolumePatch.labels': labels,
}
