import type { SecretValues } from '../../domain/spec/secrets.ts'
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
