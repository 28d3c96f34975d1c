import { DEFAULT_OCI_SETTINGS } from '../../src/worker/drivers/oci/context.ts'
import { findMissingOciRequirements } from '../../src/worker/drivers/oci/run/runtime/probe.ts'

/** Returns the reason why real sandboxes can’t run here, or null. */
export function ociUnavailableReason(): string | null {
  if (process.getuid?.() !== 0) return 'needs root'
  const missing = findMissingOciRequirements(DEFAULT_OCI_SETTINGS.initBinary)
  return missing.length === 0 ? null : missing.join('; ')
}
