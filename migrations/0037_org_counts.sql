-- Counts of each organization: its visible sandboxes, and its active runs (open, and not asked to stop). Triggers write what each statement
-- changes as a new row of org_count_deltas, so that no transaction waits for another. A loop adds these rows to org_counts and deletes them
-- in the same transaction. A count is the sum over both tables, in one statement. Deltas have no foreign key: the rows that they count do.
CREATE TABLE org_counts (
  org_id uuid NOT NULL,
  sandboxes bigint NOT NULL,
  ephemeral_runs bigint NOT NULL,
  persistent_runs bigint NOT NULL,
  CONSTRAINT org_counts_pkey PRIMARY KEY (org_id),
  CONSTRAINT org_counts_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
ALTER TABLE org_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE org_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON org_counts USING (sandyard_sees(org_id));

CREATE TABLE org_count_deltas (
  org_id uuid NOT NULL,
  sandboxes integer NOT NULL,
  ephemeral_runs integer NOT NULL,
  persistent_runs integer NOT NULL
);
CREATE INDEX org_count_deltas_of_org ON org_count_deltas (org_id);
ALTER TABLE org_count_deltas ENABLE ROW LEVEL SECURITY;
ALTER TABLE org_count_deltas FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON org_count_deltas USING (sandyard_sees(org_id));

CREATE FUNCTION sandyard_sandboxes_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, count(*), 0, 0 FROM new_rows WHERE visible_until IS NULL GROUP BY org_id;
  RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_added AFTER INSERT ON sandboxes REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_added();

CREATE FUNCTION sandyard_sandboxes_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, -count(*), 0, 0 FROM old_rows WHERE visible_until IS NULL GROUP BY org_id;
  RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_removed AFTER DELETE ON sandboxes REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_removed();

CREATE FUNCTION sandyard_runs_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, count(*) FILTER (WHERE is_ephemeral), count(*) FILTER (WHERE NOT is_ephemeral)
  FROM new_rows WHERE ended_at IS NULL AND stop_requested_at IS NULL GROUP BY org_id;
  RETURN NULL;
END $$;
CREATE TRIGGER runs_added AFTER INSERT ON runs REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_added();

CREATE FUNCTION sandyard_runs_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, -count(*) FILTER (WHERE is_ephemeral), -count(*) FILTER (WHERE NOT is_ephemeral)
  FROM old_rows WHERE ended_at IS NULL AND stop_requested_at IS NULL GROUP BY org_id;
  RETURN NULL;
END $$;
CREATE TRIGGER runs_removed AFTER DELETE ON runs REFERENCING OLD TABLE AS old_rows
  FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_removed();

-- These two functions of updates also raise the generations of workers, as before.
CREATE OR REPLACE FUNCTION sandyard_sandboxes_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(home_worker_id) INTO of_workers FROM (
    SELECT home_worker_id FROM (
      SELECT id, home_worker_id FROM old_rows WHERE visible_until IS NOT NULL
      UNION ALL
      SELECT id, home_worker_id FROM new_rows WHERE visible_until IS NOT NULL) s
    WHERE home_worker_id IS NOT NULL GROUP BY id, home_worker_id HAVING count(*) = 1) c;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, sum(change), 0, 0 FROM (
    SELECT org_id, -1 AS change FROM old_rows WHERE visible_until IS NULL
    UNION ALL
    SELECT org_id, 1 FROM new_rows WHERE visible_until IS NULL) s
  GROUP BY org_id HAVING sum(change) <> 0;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION sandyard_runs_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(worker_id) INTO of_workers FROM (
    SELECT worker_id FROM (
      SELECT id, worker_id, stop_requested_at IS NULL AS goes_on, ended_at IS NULL AS is_open FROM old_rows
      UNION ALL
      SELECT id, worker_id, stop_requested_at IS NULL, ended_at IS NULL FROM new_rows) r
    WHERE worker_id IS NOT NULL GROUP BY id, worker_id, goes_on, is_open HAVING count(*) = 1) c;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, sum(ephemeral), sum(persistent) FROM (
    SELECT org_id, -is_ephemeral::integer AS ephemeral, is_ephemeral::integer - 1 AS persistent FROM old_rows
    WHERE ended_at IS NULL AND stop_requested_at IS NULL
    UNION ALL
    SELECT org_id, is_ephemeral::integer, 1 - is_ephemeral::integer FROM new_rows
    WHERE ended_at IS NULL AND stop_requested_at IS NULL) r
  GROUP BY org_id HAVING sum(ephemeral) <> 0 OR sum(persistent) <> 0;
  RETURN NULL;
END $$;

-- The triggers lock both tables until this migration commits, so that nothing changes while the rows are counted.
INSERT INTO org_counts (org_id, sandboxes, ephemeral_runs, persistent_runs)
SELECT o.id,
  (SELECT count(*) FROM sandboxes s WHERE s.org_id = o.id AND s.visible_until IS NULL),
  (SELECT count(*) FROM runs r WHERE r.org_id = o.id AND r.ended_at IS NULL AND r.stop_requested_at IS NULL AND r.is_ephemeral),
  (SELECT count(*) FROM runs r WHERE r.org_id = o.id AND r.ended_at IS NULL AND r.stop_requested_at IS NULL AND NOT r.is_ephemeral)
FROM orgs o;

CREATE OR REPLACE FUNCTION sandyard_server_rights() RETURNS TABLE (relation text, rights text[]) LANGUAGE sql IMMUTABLE AS $$
  VALUES
    ('api_keys', '{SELECT,INSERT,UPDATE}'::text[]),
    ('events', '{SELECT,INSERT}'),
    ('idempotency', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('intercept_authorities', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('leads', '{SELECT,INSERT,UPDATE}'),
    ('machine_clocks', '{SELECT,INSERT,UPDATE}'),
    ('member_sessions', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('members', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('org_limits', '{SELECT}'),
    ('org_count_deltas', '{SELECT,INSERT,DELETE}'),
    ('org_counts', '{SELECT,INSERT,UPDATE}'),
    ('orgs', '{SELECT,INSERT,UPDATE}'),
    ('plans', '{SELECT,INSERT,UPDATE}'),
    ('previews', '{SELECT,INSERT,DELETE}'),
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
    ('sign_in_links', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('snapshots', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('ssh_host_key', '{SELECT,INSERT,UPDATE}'),
    ('ssh_keys', '{SELECT,INSERT,DELETE}'),
    ('stream_tickets', '{SELECT,INSERT,DELETE}'),
    ('usage_days', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('usage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('user_identities', '{SELECT,INSERT,DELETE}'),
    ('users', '{SELECT,INSERT,UPDATE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('webhook_deliveries', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('webhook_progress', '{SELECT,INSERT,UPDATE}'),
    ('webhooks', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
