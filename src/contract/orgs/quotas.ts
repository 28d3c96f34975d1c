import { Type } from 'typebox'
import { LIMITS, type LimitName } from '../../domain/orgs/quota.ts'
import { int32, int64, nullable } from '../common.ts'

const limit = (name: LimitName) => nullable(int32({ description: `Limit: ${LIMITS[name].what}. null: unlimited.` }))

/** Limits and what is in use of them. Source: openapi.json, `QuotaReport` with `PoolUsage`. */
export const QuotaUsageReply = Type.Object(
  {
    hard_cap: Type.Boolean({
      description: 'Whether the included vCPU and memory hours are walls: true on a plan without prices.',
    }),
    is_suspended: Type.Boolean({ description: 'Whether the organization may start nothing, by hand of the operator.' }),
    pool_exhausted: Type.Boolean({
      description: 'Whether a wall was met this month, so that sandboxes are stopped and starts refused.',
    }),
    total_sandboxes: int64({ description: 'Sandboxes that exist, whatever their status.' }),
    concurrent_ephemeral_running: int64({ description: 'Ephemeral sandboxes that start or run.' }),
    concurrent_persistent_running: int64({ description: 'Persistent sandboxes that start or run.' }),
    vcpu_hours_used: Type.Number({ description: 'vCPU-hours of this UTC month so far.' }),
    memory_gib_hours_used: Type.Number({ description: 'Memory GiB-hours of this UTC month so far.' }),
    max_sandboxes: limit('max_sandboxes'),
    max_concurrent_ephemeral_running: limit('max_concurrent_ephemeral_running'),
    max_concurrent_persistent_running: limit('max_concurrent_persistent_running'),
    max_vcpus_per_sandbox: limit('max_vcpus_per_sandbox'),
    max_memory_mib_per_sandbox: limit('max_memory_mib_per_sandbox'),
    max_disk_size_mib_per_sandbox: limit('max_disk_size_mib_per_sandbox'),
    max_uptime_minutes_per_sandbox: limit('max_uptime_minutes_per_sandbox'),
    max_total_storage_gib: limit('max_total_storage_gib'),
    included_vcpu_hours: limit('included_vcpu_hours'),
    included_memory_gib_hours: limit('included_memory_gib_hours'),
    included_disk_gib_hours: limit('included_disk_gib_hours'),
    included_storage_gib: limit('included_storage_gib'),
  },
  { title: 'QuotaUsage', description: 'What the organization may have, and what it has now.' },
)
