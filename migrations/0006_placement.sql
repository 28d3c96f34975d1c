-- What placement reads, and what is told of those that wait.

-- offer: a name for what a worker offers beside room. Many workers share one; what is known by its name is not read again.
ALTER TABLE workers ADD COLUMN offer text NOT NULL
  GENERATED ALWAYS AS (md5(coalesce(driver::text, '') || ' ' || coalesce(storage::text, ''))) STORED;

-- waits_since: since when it is known that no worker has room for the run. New ones are looked at in every pass; those
-- that are known to wait, when there may be room.
ALTER TABLE runs ADD COLUMN waits_since timestamptz;
UPDATE runs r SET waits_since = r.opened_at FROM sandboxes s
  WHERE s.id = r.sandbox_id AND r.ended_at IS NULL AND r.worker_id IS NULL AND s.status_reason = 'insufficient_capacity';
DROP INDEX runs_pending;
CREATE INDEX runs_new ON runs (opened_at, id) WHERE ended_at IS NULL AND worker_id IS NULL AND waits_since IS NULL;
CREATE INDEX runs_waiting ON runs (opened_at, id) INCLUDE (vcpus, memory_mib, org_id)
  WHERE ended_at IS NULL AND worker_id IS NULL AND waits_since IS NOT NULL;

-- What open runs take of each worker is summed from this index alone; org_id is there for row-level security.
DROP INDEX runs_of_worker;
CREATE INDEX runs_of_worker ON runs (worker_id) INCLUDE (vcpus, memory_mib, org_id) WHERE ended_at IS NULL AND worker_id IS NOT NULL;
