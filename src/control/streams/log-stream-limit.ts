import type { SandboxKey } from '../deps.ts'
import { makeConcurrencyLimit, type ConcurrencyLimit } from './concurrency-limit.ts'

/** The most log streams that may be open at once in this process. */
export type LogStreamLimits = { readonly perOrg: number; readonly inAll: number }

/** Places for log streams: of each organization, so that none can take them all, and of all together. */
export function makeLogStreamLimit({ perOrg, inAll }: LogStreamLimits): ConcurrencyLimit<Pick<SandboxKey, 'org_id'>> {
  const org = { name: 'log_streams_per_org', variable: 'SANDYARD_LOG_STREAMS_PER_ORG', max: perOrg }
  const all = { name: 'log_streams', variable: 'SANDYARD_LOG_STREAM_CAPACITY', max: inAll }
  return makeConcurrencyLimit<Pick<SandboxKey, 'org_id'>>(
    [
      { ...org, keyOf: ({ org_id }) => org_id },
      { ...all, keyOf: () => 'all' },
    ],
    'end streams that are not read',
  )
}
