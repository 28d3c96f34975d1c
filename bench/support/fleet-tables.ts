import { createHash } from 'node:crypto'
import type { Client } from 'pg'

/** A worker that the benchmark simulates. */
export type PlayedWorker = {
  readonly id: string
  readonly credential: string
  /** The runs that the worker has from the beginning, as after a restart. */
  readonly runs: readonly { readonly run_id: string; readonly sandbox_id: string }[]
}

/** Inserts workers as if they had joined and synced a moment ago. */
export async function fillWorkers(client: Client, count: number): Promise<readonly PlayedWorker[]> {
  const played = Array.from({ length: count }, (_, index) => ({
    credential: `credential-of-the-benchmark-worker-${String(index)}`,
  }))
  const hashes = played.map(({ credential }) => createHash('sha256').update(credential).digest('hex'))
  const { rows } = await client.query<{ id: string }>(
    `WITH made AS (
       INSERT INTO workers (id, name, credential_sha256, created_at, vcpus, memory_mib, disk_mib, driver, storage, lease_expires_at)
       SELECT uuidv7(), 'bench-' || n, decode(hash, 'hex'), now(), 32, 65536, 1000000, driver, storage, now() + interval '1 hour'
       FROM unnest($1::text[]) WITH ORDINALITY AS w(hash, n),
         (SELECT driver, storage FROM workers WHERE driver IS NOT NULL LIMIT 1) own
       RETURNING id, name)
     SELECT id FROM made ORDER BY substr(name, 7)::integer`,
    [hashes],
  )
  return played.map(({ credential }, index) => ({ credential, id: rows[index]?.id ?? '', runs: [] }))
}

/**
 * Inserts copies of the template sandbox, then a newly admitted run for each copy. A checkpoint before the runs keeps
 * the disk writes for the copies out of the measurement of placements.
 */
export async function fillPending(client: Client, prefix: string, count: number): Promise<void> {
  await client.query(
    `INSERT INTO sandboxes (id, org_id, name, slug, status, status_reason, ephemeral, created_at, vcpus, memory_mib, abilities,
       spec, spec_projection, registry)
     SELECT uuidv7(), org_id, $1::text || n, $1::text || n, 'starting', 'scheduling', false, now(), 1, 512, abilities, spec,
       spec_projection, registry
     FROM (SELECT * FROM sandboxes WHERE name = 'bench-template') t, generate_series(1, $2::integer) n`,
    [prefix, count],
  )
  await client.query('CHECKPOINT')
  await client.query(
    `INSERT INTO runs (id, org_id, sandbox_id, vcpus, memory_mib, opened_at)
     SELECT uuidv7(), org_id, id, 1, 512, now() FROM sandboxes WHERE starts_with(name, $1)`,
    [prefix],
  )
}

/** Counts the open runs, and the open runs that have a worker. */
export async function countRuns(client: Client): Promise<{ readonly open: number; readonly placed: number }> {
  const { rows } = await client.query<{ open: string; placed: string }>(
    `SELECT count(*) AS open, count(worker_id) AS placed FROM runs WHERE ended_at IS NULL`,
  )
  return { open: Number(rows[0]?.open), placed: Number(rows[0]?.placed) }
}

/** Ends the runs of sandboxes whose name starts with the prefix. */
export async function endRuns(client: Client, prefix: string): Promise<void> {
  await client.query(
    `WITH ended AS (UPDATE sandboxes SET status = 'stopped', status_reason = NULL WHERE starts_with(name, $1) RETURNING id)
     UPDATE runs SET ended_at = now() WHERE ended_at IS NULL AND sandbox_id IN (SELECT id FROM ended)`,
    [prefix],
  )
}

/** Marks every placed run as running. */
export async function runPlaced(client: Client): Promise<void> {
  await client.query(
    `WITH going AS (UPDATE runs SET started_at = now() WHERE ended_at IS NULL AND worker_id IS NOT NULL RETURNING sandbox_id)
     UPDATE sandboxes SET status = 'running', status_reason = NULL, started_at = now() WHERE id IN (SELECT sandbox_id FROM going)`,
  )
}

/** Reads the runs that were placed on each worker, and returns the workers with their runs. */
export async function withRuns(client: Client, workers: readonly PlayedWorker[]): Promise<readonly PlayedWorker[]> {
  const { rows } = await client.query<{ worker_id: string; run_id: string; sandbox_id: string }>(
    `SELECT worker_id, id AS run_id, sandbox_id FROM runs WHERE ended_at IS NULL AND worker_id IS NOT NULL`,
  )
  const byWorker = Map.groupBy(rows, ({ worker_id }) => worker_id)
  return workers.map((worker) => ({
    ...worker,
    runs: (byWorker.get(worker.id) ?? []).map(({ run_id, sandbox_id }) => ({ run_id, sandbox_id })),
  }))
}
