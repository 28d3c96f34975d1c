-- Snapshots of disks. A row is also the operation that makes the snapshot: `queued`, then `in_progress`, then `succeeded` or
-- `failed`. Its data lies on the worker with the sandbox's disk. A snapshot without a name was made for a fork, and clients never
-- see it. A row with `deleted_at` is hidden. It goes once no sandbox needs the data any more and the worker has deleted it.
CREATE TABLE snapshots (
  id uuid NOT NULL,
  operation_id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text,
  status text NOT NULL,
  sandbox_id uuid NOT NULL,
  sandbox_name text NOT NULL,
  worker_id uuid NOT NULL,
  image text NOT NULL,
  labels jsonb NOT NULL,
  replaces boolean NOT NULL,
  records_integrity boolean NOT NULL,
  disk_bytes bigint,
  size_bytes bigint,
  digest text,
  manifest text,
  error jsonb,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  completed_at timestamptz,
  deleted_at timestamptz,
  CONSTRAINT snapshots_pkey PRIMARY KEY (id),
  CONSTRAINT snapshots_operation_key UNIQUE (operation_id),
  CONSTRAINT snapshots_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT snapshots_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers (id),
  CONSTRAINT snapshots_status_known CHECK (status IN ('queued', 'in_progress', 'succeeded', 'failed')),
  CONSTRAINT snapshots_result CHECK ((status = 'succeeded')
    = (disk_bytes IS NOT NULL AND size_bytes IS NOT NULL AND digest IS NOT NULL AND manifest IS NOT NULL)),
  CONSTRAINT snapshots_error CHECK ((status = 'failed') = (error IS NOT NULL)),
  CONSTRAINT snapshots_completed CHECK ((status IN ('succeeded', 'failed')) = (completed_at IS NOT NULL)),
  CONSTRAINT snapshots_sizes CHECK (disk_bytes > 0 AND size_bytes >= 0)
);
-- A snapshot that replaces another one has its name only once it is complete.
CREATE UNIQUE INDEX snapshots_name_key ON snapshots (org_id, name)
  WHERE deleted_at IS NULL AND status <> 'failed' AND NOT replaces;
CREATE INDEX snapshots_page ON snapshots (org_id, id) WHERE deleted_at IS NULL AND status = 'succeeded' AND name IS NOT NULL;
CREATE INDEX snapshots_to_take ON snapshots (id) WHERE status IN ('queued', 'in_progress');
CREATE INDEX snapshots_to_discard ON snapshots (id) WHERE deleted_at IS NOT NULL OR status = 'failed' OR name IS NULL;
CREATE INDEX snapshots_of_worker ON snapshots (worker_id);
ALTER TABLE snapshots ENABLE ROW LEVEL SECURITY;
ALTER TABLE snapshots FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON snapshots USING (sandyard_sees(org_id));

-- The snapshot from which a sandbox's disk is made.
ALTER TABLE sandboxes ADD COLUMN snapshot_id uuid;
CREATE INDEX sandboxes_of_snapshot ON sandboxes (snapshot_id) WHERE snapshot_id IS NOT NULL;

CREATE OR REPLACE FUNCTION sandyard_server_rights() RETURNS TABLE (relation text, rights text[]) LANGUAGE sql IMMUTABLE AS $$
  VALUES
    ('api_keys', '{SELECT,INSERT,UPDATE}'::text[]),
    ('events', '{SELECT,INSERT}'),
    ('idempotency', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('intercept_authorities', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('leads', '{SELECT,INSERT,UPDATE}'),
    ('machine_clocks', '{SELECT,INSERT,UPDATE}'),
    ('members', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('org_limits', '{SELECT}'),
    ('orgs', '{SELECT,INSERT,UPDATE}'),
    ('plans', '{SELECT,INSERT,UPDATE}'),
    ('pruned_sandboxes', '{SELECT,INSERT,DELETE}'),
    ('registry_credentials', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('replicas', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('retention_horizons', '{SELECT,INSERT,UPDATE}'),
    ('runs', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('sandbox_label_pairs', '{SELECT,INSERT,DELETE}'),
    ('sandbox_labels', '{SELECT,INSERT,DELETE}'),
    ('sandbox_volumes', '{SELECT,INSERT,DELETE}'),
    ('sandboxes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('sandyard_migrations', '{SELECT}'),
    ('sealing_key', '{SELECT,INSERT,UPDATE}'),
    ('storage_accruals', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('storage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('snapshots', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('stream_tickets', '{SELECT,INSERT,DELETE}'),
    ('usage_days', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('usage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('users', '{SELECT,INSERT,UPDATE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
