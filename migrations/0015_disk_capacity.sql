-- disk_mib: what the disks of all sandboxes of the worker may have together, by their sizes. Null: not limited.
-- It applies only if the worker's driver report has default_disk_mib. Earlier workers reported something else.
ALTER TABLE workers ALTER COLUMN disk_mib DROP NOT NULL;

-- The sizes of the disks on each worker are summed from this index alone; org_id is there for row-level security.
CREATE INDEX sandboxes_disks ON sandboxes (home_worker_id) INCLUDE (disk_size_mib, org_id)
  WHERE home_worker_id IS NOT NULL AND visible_until IS NULL;

-- The few runs that are being stopped: the disk of a deleted sandbox is still there until its run has ended.
CREATE INDEX runs_stopping ON runs (worker_id) INCLUDE (sandbox_id, org_id)
  WHERE ended_at IS NULL AND worker_id IS NOT NULL AND stop_requested_at IS NOT NULL;

-- Waiting runs whose disk is too large are skipped by the index alone.
DROP INDEX runs_waiting;
CREATE INDEX runs_waiting ON runs (opened_at, id) INCLUDE (vcpus, memory_mib, disk_mib, sandbox_id, org_id)
  WHERE ended_at IS NULL AND worker_id IS NULL AND waits_since IS NOT NULL;
