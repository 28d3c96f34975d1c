-- By which clock the instants in this database were written: when the machine of the server was booted, by that clock. See
-- docs/decisions/0040-clocks.md.
CREATE TABLE machine_clocks (
  boot_id uuid NOT NULL,
  booted_at timestamptz NOT NULL,
  CONSTRAINT machine_clocks_pkey PRIMARY KEY (boot_id)
);
ALTER TABLE machine_clocks ENABLE ROW LEVEL SECURITY;
ALTER TABLE machine_clocks FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON machine_clocks USING (sandyard_is_system());

-- `clock`: the time that retention has reached. It follows the server's clock, but never by more than a day an hour.
ALTER TABLE retention_horizons DROP CONSTRAINT retention_horizons_kind_known;
ALTER TABLE retention_horizons ADD CONSTRAINT retention_horizons_kind_known CHECK (kind IN ('runs', 'usage', 'clock'));

CREATE OR REPLACE FUNCTION sandyard_server_rights() RETURNS TABLE (relation text, rights text[]) LANGUAGE sql IMMUTABLE AS $$
  VALUES
    ('api_keys', '{SELECT,INSERT,UPDATE}'::text[]),
    ('events', '{SELECT,INSERT}'),
    ('idempotency', '{SELECT,INSERT,UPDATE,DELETE}'),
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
    ('stream_tickets', '{SELECT,INSERT,DELETE}'),
    ('usage_days', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('usage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('users', '{SELECT,INSERT,UPDATE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
