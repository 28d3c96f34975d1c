import type { SandboxKey } from '../deps.ts'
import { makeConcurrencyLimit, type ConcurrencyLimit } from './concurrency-limit.ts'

/** The most channels that may be open at once in this process. */
export type ChannelLimits = { readonly perSandbox: number; readonly perOrg: number }

/** Places for channels: of each sandbox, and of each organization over all its sandboxes. */
export function makeChannelLimit({ perSandbox, perOrg }: ChannelLimits): ConcurrencyLimit<SandboxKey> {
  const sandbox = { name: 'channels_per_sandbox', variable: 'SANDYARD_CHANNELS_PER_SANDBOX', max: perSandbox }
  const org = { name: 'channels_per_org', variable: 'SANDYARD_CHANNELS_PER_ORG', max: perOrg }
  return makeConcurrencyLimit<SandboxKey>(
    [
      { ...sandbox, keyOf: ({ id }) => id },
      { ...org, keyOf: ({ org_id }) => org_id },
    ],
    'close channels that are not used',
  )
}
