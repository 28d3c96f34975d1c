import type { WorkerId } from '../../domain/ids.ts'
import type { PublishedPort } from '../../domain/spec/published-ports.ts'
import type { Queryable } from '../postgres/database.ts'

/** The ports that open runs have on these workers. Null: on all workers. Workers without any are left out. */
export async function takenPorts(
  q: Queryable,
  workers: readonly WorkerId[] | null,
): Promise<Map<WorkerId, readonly PublishedPort[]>> {
  if (workers?.length === 0) return new Map()
  const { rows } = await q.query<{ readonly worker_id: WorkerId; readonly ports: readonly PublishedPort[] }>({
    name: 'takenPorts.list',
    isRead: true,
    text: `SELECT r.worker_id, jsonb_agg(p.port) AS ports FROM runs r, jsonb_array_elements(r.ports) AS p(port)
           WHERE r.ended_at IS NULL AND r.ports IS NOT NULL AND ($1::uuid[] IS NULL OR r.worker_id = ANY($1)) GROUP BY r.worker_id`,
    values: [workers],
  })
  return new Map(rows.map(({ worker_id, ports }) => [worker_id, ports]))
}
