/**
 * The server processes on this database. Each process renews its own row. A reader decides by its own clock which
 * processes are alive.
 */
import type { Queryable } from '../postgres/database.ts'

/** The row of a server process. */
export type Replica = {
  readonly id: string
  /** The URL at which workers reach the process. Null: workers use the address that they were given. */
  readonly url: string | null
  readonly version: string
  /** The newest migration that the process knows. */
  readonly schema_version: number
  readonly started_at: Date
}

/** The row with the time of its last renewal, `seen_at`. */
export type ReplicaRow = Replica & { readonly seen_at: Date }

/** Inserts the row of a process, or renews it. May be repeated. */
export async function renew(q: Queryable, replica: ReplicaRow): Promise<void> {
  const { id, url, version, schema_version, started_at, seen_at } = replica
  await q.query({
    name: 'replicas.renew',
    text: `INSERT INTO replicas (id, url, version, schema_version, started_at, seen_at) VALUES ($1, $2, $3, $4, $5, $6)
           ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at`,
    values: [id, url, version, schema_version, started_at, seen_at],
  })
}

/** The first `limit` processes in the order in which they started. */
export async function list(q: Queryable, limit: number): Promise<readonly ReplicaRow[]> {
  const { rows } = await q.query<ReplicaRow>({
    name: 'replicas.list',
    text: `SELECT id, url, version, schema_version, started_at, seen_at FROM replicas ORDER BY started_at, id LIMIT $1`,
    values: [limit],
  })
  return rows
}

/** Removes a row, unless it was renewed after it was read. May be repeated. */
export async function remove(q: Queryable, { id, seen_at }: Pick<ReplicaRow, 'id' | 'seen_at'>): Promise<void> {
  await q.query({ text: 'DELETE FROM replicas WHERE id = $1 AND seen_at = $2', values: [id, seen_at] })
}

/** Removes the rows of earlier processes at this URL, because two processes can't listen on one address. */
export async function removeOthersAt(q: Queryable, url: string, id: string): Promise<void> {
  await q.query({ text: 'DELETE FROM replicas WHERE url = $1 AND id <> $2', values: [url, id] })
}
