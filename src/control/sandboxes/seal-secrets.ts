import type { RunSecret, SecretValues } from '../../domain/spec/secrets.ts'
import type { Seal } from '../../lib/seal.ts'

/** Seals the values of a sandbox's secrets, bound to the sandbox. Null if there are none. */
export function sealSecretValues(seal: Seal, sandbox: string, values: SecretValues): Buffer | null {
  return values.size === 0 ? null : seal.seal(JSON.stringify([...values]), valuesContext(sandbox))
}

/** The values that `sealSecretValues` sealed. Throws `UnsealError` if another key sealed them. */
export function openSecretValues(seal: Seal, sandbox: string, sealed: Buffer | null): SecretValues {
  if (sealed === null) return new Map()
  return new Map(JSON.parse(seal.open(sealed, valuesContext(sandbox))) as [string, string][]) // this program sealed it
}

function valuesContext(sandbox: string): string {
  return `sandbox-secrets:${sandbox}`
}

/** Seals the secrets that a run keeps, with their values, bound to the run. */
export function sealRunSecrets(seal: Seal, run: string, secrets: readonly RunSecret[]): Buffer {
  return seal.seal(JSON.stringify(secrets), runContext(run))
}

/** What `sealRunSecrets` sealed. Throws `UnsealError` if another key sealed it. */
export function openRunSecrets(seal: Seal, run: string, sealed: Buffer): readonly RunSecret[] {
  return JSON.parse(seal.open(sealed, runContext(run))) as readonly RunSecret[] // this program sealed it
}

function runContext(run: string): string {
  return `run-secrets:${run}`
}

/** Seals the key of the certificate authority that a sandbox's request gave, bound to the sandbox. */
export function sealInterceptKey(seal: Seal, sandbox: string, key: string | null): Buffer | null {
  return key === null ? null : seal.seal(key, interceptKeyContext(sandbox))
}

/** What `sealInterceptKey` sealed. Throws `UnsealError` if another key sealed it. */
export function openInterceptKey(seal: Seal, sandbox: string, sealed: Buffer): string {
  return seal.open(sealed, interceptKeyContext(sandbox))
}

function interceptKeyContext(sandbox: string): string {
  return `intercept-key:${sandbox}`
}
