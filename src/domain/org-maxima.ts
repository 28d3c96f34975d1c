import { Problem } from './problem.ts'
import { SNAPSHOTS_MAX } from './snapshots/snapshot.ts'
import { VOLUMES_MAX } from './volumes/volume.ts'

/**
 * How many of each an organization may have, whatever its plan: far more than it needs, so that no key fills the tables that all
 * organizations share.
 */
export const ORG_MAXIMA = {
  api_keys: 1_000,
  registry_credentials: 1_000,
  ssh_keys: 1_000,
  members: 10_000,
  volumes: VOLUMES_MAX,
  snapshots: SNAPSHOTS_MAX,
} as const

const NAMES: Readonly<Record<keyof typeof ORG_MAXIMA, { readonly plural: string; readonly how_to_change: string }>> = {
  api_keys: { plural: 'valid API keys', how_to_change: 'revoke some' },
  registry_credentials: { plural: 'registry credentials', how_to_change: 'delete some' },
  ssh_keys: { plural: 'SSH keys', how_to_change: 'remove some' },
  members: { plural: 'members', how_to_change: 'remove some' },
  volumes: { plural: 'volumes', how_to_change: 'delete some' },
  snapshots: { plural: 'snapshots, and as many that failed in a day', how_to_change: 'delete some' },
}

/** The problem of an organization that has as many as it may have. */
export function tooManyOf(limit: keyof typeof ORG_MAXIMA): Problem {
  const max = ORG_MAXIMA[limit]
  const { plural, how_to_change } = NAMES[limit]
  return new Problem('quota_exceeded', {
    message: `quota exceeded: an organization has at most ${String(max)} ${plural}`,
    details: { limit, max, current: max, requested: 1, how_to_change },
  })
}
