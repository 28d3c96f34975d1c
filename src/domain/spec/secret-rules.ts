/** What is valid in a secret, in a create body and in a modification alike. */
import { byteLength } from '../names.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import {
  ENV_VAR_MAX_BYTES,
  HEADER_FIELD_MAX_CHARS,
  PLACEHOLDER_MAX_BYTES,
  SECRET_VALUE_MAX_BYTES,
} from '../requests/request-bounds.ts'
import type { HostPattern, Secret, Substitution } from './secrets.ts'
import type { SubstitutionInput } from './spec-input.ts'

/** The path of the checked object in the request, and the function that records a refusal. */
type FieldContext = { readonly at: string; readonly refuse: Refuse }

/** Where a client may store a value, for messages. */
export const SOURCES = { env: 'an environment variable', store: 'a secret store' } as const

/** The placeholder of a secret that names none: that of the public client. */
export function defaultPlaceholder(envVar: string): string {
  return `$MSB_${envVar}`
}

/** Fills in the defaults of a substitution: header fields and basic authentication alone. */
export function normalizeSubstitution(input: SubstitutionInput, context: FieldContext): Substitution {
  const headers = input.headers ?? true
  const normalized = {
    headers,
    basic_auth: input.basic_auth ?? headers,
    header_fields: input.header_fields?.map((field) => field.toLowerCase()) ?? null,
    query: input.query ?? false,
    body: input.body ?? false,
  }
  refuseInvalidSubstitution(normalized, context)
  return normalized
}

/** RFC 9110, section 5.6.2: the characters of a token, which a field name is. In lower case. */
const TOKEN = /^[!#$%&'*+.^_`|~0-9a-z-]+$/

/** Refuses a substitution that would never happen, and names of header fields that no request can have. */
export function refuseInvalidSubstitution(substitution: Substitution, { at, refuse }: FieldContext): void {
  const { headers, basic_auth, header_fields, query, body } = substitution
  if (!headers && !basic_auth && !query && !body) {
    const accepted = 'at least one of headers, query and body'
    refuse({ code: 'invalid_sandbox_config', field: at, seen: 'no place where the value is put in', accepted })
  }
  if (header_fields === null) return
  const field = `${at}.header_fields`
  if (!headers && !basic_auth)
    refuse({ code: 'invalid_sandbox_config', field, seen: 'header fields without headers', accepted: 'headers: true' })
  if (header_fields.length === 0)
    refuse({ code: 'invalid_sandbox_config', field, seen: 'an empty list', accepted: 'null for all, or names' })
  header_fields.forEach((name, index) => {
    if (TOKEN.test(name) && name.length <= HEADER_FIELD_MAX_CHARS) return
    const accepted = `a field name of HTTP (RFC 9110) with at most ${String(HEADER_FIELD_MAX_CHARS)} characters`
    refuse({ code: 'invalid_request', field: `${field}[${String(index)}]`, seen: describeSeen(name), accepted })
  })
}

/** Refuses an invalid variable, placeholder or list of allowed hosts. */
export function refuseInvalidSecret(secret: Secret, { at, refuse }: FieldContext): void {
  const { allowed_hosts } = secret
  refuseInvalidNames(secret, { at, nameOf: 'env_var', refuse })
  if (allowed_hosts.length === 0) {
    const accepted = 'at least one host that may get the value'
    refuse({ code: 'invalid_sandbox_config', field: `${at}.allowed_hosts`, seen: 'no host', accepted })
  }
  refuseInvalidHosts(allowed_hosts, { at: `${at}.allowed_hosts`, refuse })
}

/** Refuses an invalid variable, whose field is called `nameOf`, or an invalid placeholder. */
export function refuseInvalidNames(
  { env_var, placeholder }: { readonly env_var: string; readonly placeholder: string | null },
  { at, nameOf, refuse }: FieldContext & { readonly nameOf: 'env_var' | 'name' },
): void {
  if (!isEnvVar(env_var))
    refuse({ code: 'invalid_request', field: `${at}.${nameOf}`, seen: describeSeen(env_var), accepted: ENV_VAR_RULE })
  if (placeholder === null || isPlaceholder(placeholder)) return
  const seen = `${String(byteLength(placeholder))} bytes`
  refuse({ code: 'invalid_request', field: `${at}.placeholder`, seen, accepted: PLACEHOLDER_RULE })
}

const ENV_VAR_RULE = `the name of a variable of at most ${String(ENV_VAR_MAX_BYTES)} bytes, without = and NUL`
const PLACEHOLDER_RULE = `1 to ${String(PLACEHOLDER_MAX_BYTES)} bytes of UTF-8 without NUL, CR and LF`

function isEnvVar(name: string): boolean {
  const isInBounds = name !== '' && byteLength(name) <= ENV_VAR_MAX_BYTES
  return isInBounds && name.isWellFormed() && !name.includes('=') && !name.includes('\0')
}

function isPlaceholder(text: string): boolean {
  const isInBounds = text !== '' && byteLength(text) <= PLACEHOLDER_MAX_BYTES
  return isInBounds && text.isWellFormed() && !LINE_BREAKS_AND_NUL.test(text)
}

// oxlint-disable-next-line no-control-regex -- these three characters end a header field
const LINE_BREAKS_AND_NUL = /[\0\r\n]/

const HOST = /^[a-z0-9_:](?:[a-z0-9_.:-]*[a-z0-9_:])?$/
const WILDCARD = /^\*\.[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?$/
const HOST_MAX_CHARS = 253

/** Refuses hosts that no name or address can match. */
export function refuseInvalidHosts(hosts: readonly HostPattern[], { at, refuse }: FieldContext): void {
  hosts.forEach((host, index) => {
    if (host.type === 'any') return
    const shape = host.type === 'exact' ? HOST : WILDCARD
    if (shape.test(host.value) && host.value.length <= HOST_MAX_CHARS && !host.value.includes('..')) return
    const accepted =
      host.type === 'exact' ? 'a host name or an address, such as api.example.com' : 'a wildcard, such as *.example.com'
    const field = `${at}[${String(index)}].value`
    refuse({ code: 'invalid_request', field, seen: describeSeen(host.value), accepted })
  })
}

/**
 * Refuses a value that is empty, too long, or would break the request that it is put into. A value that ends with a
 * line break was usually read from a file. The refusal never repeats the value. A null substitution may be any.
 */
export function refuseInvalidValue(
  value: string,
  substitution: Substitution | null,
  { at: field, refuse }: FieldContext,
): void {
  const bytes = byteLength(value)
  const isInLine = substitution === null || substitution.headers || substitution.basic_auth || substitution.query
  if (value === '' || bytes > SECRET_VALUE_MAX_BYTES || !value.isWellFormed()) {
    const accepted = `1 to ${String(SECRET_VALUE_MAX_BYTES)} bytes of UTF-8`
    refuse({ code: 'invalid_sandbox_config', field, seen: `${String(bytes)} bytes`, accepted })
  } else if (isInLine && LINE_BREAKS_AND_NUL.test(value)) {
    const accepted = 'a value without NUL, CR and LF, unless substitution names the body alone'
    refuse({ code: 'invalid_sandbox_config', field, seen: 'a value with NUL, CR or LF', accepted })
  }
}

/** Refuses two secrets with one variable or one placeholder. */
export function refuseDoubles(
  secrets: readonly Secret[],
  { at, refuse }: { readonly at: (index: number) => string; readonly refuse: Refuse },
): void {
  for (const key of ['env_var', 'placeholder'] as const) {
    secrets.forEach((secret, index) => {
      const first = secrets.findIndex((other) => other[key] === secret[key])
      if (first === index) return
      const seen = `the one of ${at(first)} too`
      refuse({ code: 'invalid_sandbox_config', field: `${at(index)}.${key}`, seen, accepted: 'one of its own' })
    })
  }
}
