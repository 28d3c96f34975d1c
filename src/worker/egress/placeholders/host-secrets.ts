import { matchesHost } from '../../../domain/network/host-pattern.ts'
import type { HostPattern, RunSecret } from '../../../domain/spec/secrets.ts'
import { makePlaceholderIndex, type PlaceholderIndex } from './placeholder-index.ts'

/** What may happen to the secrets of a sandbox in a request to one host. A secret in neither list passes unchanged. */
export type HostSecrets = {
  /** Their values may be put in. */
  readonly allowed: readonly RunSecret[]
  /** Their placeholders must not leave. */
  readonly forbidden: readonly RunSecret[]
  /** Placeholders that may leave, even if they contain a forbidden one. */
  readonly tolerated: readonly string[]
  /** Finds the placeholders of all secrets. */
  readonly index: PlaceholderIndex
}

/** The secrets of a sandbox, as requests are searched for them: in Latin-1 text, one character for each byte. */
export type PreparedSecrets = { readonly secrets: readonly RunSecret[]; readonly index: PlaceholderIndex }

/** Prepares the secrets of a sandbox once for all its requests. */
export function prepareSecrets(secrets: readonly RunSecret[]): PreparedSecrets {
  const prepared = secrets.map((secret) => {
    return { ...secret, placeholder: toBytes(secret.placeholder), value: toBytes(secret.value) }
  })
  return { secrets: prepared, index: makePlaceholderIndex(prepared.map(({ placeholder }) => placeholder)) }
}

function toBytes(text: string): string {
  return Buffer.from(text).toString('latin1')
}

export type HostFacts = {
  /** The name that the connection was opened for, or the destination's address. */
  readonly host: string
  /** The names that the sandbox's own DNS answers tie to the destination. */
  readonly tiedNames: readonly string[]
  /** Whether the connection goes to a server whose certificate was verified. */
  readonly isVerified: boolean
}

/** Judges each secret for a host. An allowed host needs a tie by DNS too, because a sandbox can send any name to any address. */
export function judgeSecrets(
  { secrets, index }: PreparedSecrets,
  { host, tiedNames, isVerified }: HostFacts,
): HostSecrets {
  const isHost = rememberPatterns((pattern) => matchesHost(pattern, host))
  const isTiedHost = rememberPatterns(
    (pattern) => matchesHost(pattern, host) && tiedNames.some((name) => matchesHost(pattern, name)),
  )
  const isAllowed = (secret: RunSecret): boolean =>
    (isVerified || !secret.require_tls_identity) &&
    secret.allowed_hosts.some((pattern) => pattern.type === 'any' || isTiedHost(pattern))
  const passes = (secret: RunSecret): boolean =>
    secret.passthrough_hosts.some((pattern) => pattern.type === 'any' || isHost(pattern))
  const allowed = secrets.filter(isAllowed)
  const withheld = secrets.filter((secret) => !allowed.includes(secret))
  const forbidden = withheld.filter((secret) => !passes(secret))
  const tolerated = [...allowed, ...withheld.filter(passes)].map(({ placeholder }) => placeholder)
  return { allowed, forbidden, tolerated, index }
}

type Pattern = Exclude<HostPattern, { readonly type: 'any' }>

/** Secrets mostly have the same patterns. With 64 names, 256 secrets with 256 patterns each took 86 ms to judge (2026-11). */
function rememberPatterns(judge: (pattern: Pattern) => boolean): (pattern: Pattern) => boolean {
  const known = new Map<string, boolean>()
  return (pattern) => {
    const key = `${pattern.type} ${pattern.value}`
    const judged = known.get(key) ?? judge(pattern)
    known.set(key, judged)
    return judged
  }
}
