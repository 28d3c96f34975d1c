import type { OrgId } from '../../domain/ids.ts'
import { Problem } from '../../domain/problem.ts'
import { refusalProblem } from '../../domain/refusal.ts'
import { mayServeOrg } from '../../domain/workers/worker-bounds.ts'
import type { VolumeHome } from '../../store/volumes/volumes.ts'
import * as volumes from '../../store/volumes/volumes.ts'
import * as workers from '../../store/workers/workers.ts'
import type { BaseDeps } from '../deps.ts'

/**
 * Throws `invalid_request` for `capacity_gib` if the cap is above the organization's storage limit. Throws it too if no
 * worker that may hold the volume enforces caps. Throws `unavailable` before the first worker has reported how it
 * stores volumes.
 */
export async function requireEnforceableCap(
  deps: Pick<BaseDeps, 'db'>,
  org: OrgId,
  cap: { readonly capacity_gib: number; readonly home: VolumeHome },
): Promise<void> {
  const { capacity_gib, home } = cap
  const limitGib = await deps.db.asOrg(org, (q) => volumes.storageLimitGib(q, org))
  if (limitGib !== null && capacity_gib > limitGib) {
    const accepted = `1 to ${String(limitGib)}, the organization's max_total_storage_gib, or null`
    throw refusalProblem({ code: 'invalid_request', field: 'capacity_gib', seen: String(capacity_gib), accepted })
  }
  const all = await deps.db.asSystem((q) => workers.listStorageReports(q))
  const known = all.filter((reported) => mayServeOrg(reported, org))
  if (known.length === 0) {
    throw new Problem('unavailable', {
      message: 'no worker that may serve this organization has reported yet how it stores volumes',
      retryAfterSeconds: 1,
    })
  }
  const possible = known.filter(({ id, storage }) =>
    home.home_worker_id === null ? storage.is_shared || !home.is_shared : id === home.home_worker_id,
  )
  if (possible.some(({ storage }) => storage.enforces_caps)) return
  const why = possible[0]?.storage.how ?? 'no worker holds it'
  throw new Problem('invalid_request', {
    message: `invalid request: capacity_gib can't be enforced by the workers that may hold this volume: ${why}`,
    details: {
      field: 'capacity_gib',
      seen: String(capacity_gib),
      accepted: 'null, or a worker whose storage enforces caps; `sandyard doctor` shows what is missing',
      why,
    },
  })
}
