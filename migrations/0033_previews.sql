-- Ports of sandboxes that are open to others than the keys of the organization: to whoever has a link (secret_sha256), or to everybody.
-- A row ends with its sandbox.
CREATE TABLE previews (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  port integer NOT NULL,
  access text NOT NULL,
  secret_sha256 bytea,
  expires_at timestamptz,
  created_at timestamptz NOT NULL,
  CONSTRAINT previews_pkey PRIMARY KEY (id),
  CONSTRAINT previews_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT previews_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes (id) ON DELETE CASCADE,
  CONSTRAINT previews_port CHECK (port BETWEEN 1 AND 65535),
  CONSTRAINT previews_access CHECK ((access = 'link') = (secret_sha256 IS NOT NULL) AND access IN ('link', 'public'))
);
CREATE INDEX previews_of_sandbox ON previews (sandbox_id, port);
CREATE INDEX previews_public ON previews (org_id) WHERE access = 'public';
ALTER TABLE previews ENABLE ROW LEVEL SECURITY;
ALTER TABLE previews FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON previews USING (sandyard_sees(org_id));

CREATE OR REPLACE VIEW org_limits WITH (security_invoker=true) AS
 SELECT o.id AS org_id,
    o.plan,
    p.prices,
    (o.suspended_at IS NOT NULL) AS is_suspended,
    (p.prices IS NULL) AS hard_cap,
    sandyard_limit(p.limits, o.quota_overrides, 'max_sandboxes'::text) AS max_sandboxes,
    sandyard_limit(p.limits, o.quota_overrides, 'max_concurrent_ephemeral_running'::text) AS max_concurrent_ephemeral_running,
    sandyard_limit(p.limits, o.quota_overrides, 'max_concurrent_persistent_running'::text) AS max_concurrent_persistent_running,
    sandyard_limit(p.limits, o.quota_overrides, 'max_vcpus_per_sandbox'::text) AS max_vcpus_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_memory_mib_per_sandbox'::text) AS max_memory_mib_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_disk_size_mib_per_sandbox'::text) AS max_disk_size_mib_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_uptime_minutes_per_sandbox'::text) AS max_uptime_minutes_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_total_storage_gib'::text) AS max_total_storage_gib,
    sandyard_limit(p.limits, o.quota_overrides, 'included_vcpu_hours'::text) AS included_vcpu_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_memory_gib_hours'::text) AS included_memory_gib_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_disk_gib_hours'::text) AS included_disk_gib_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_storage_gib'::text) AS included_storage_gib,
    sandyard_limit(p.limits, o.quota_overrides, 'max_public_previews'::text) AS max_public_previews
   FROM (orgs o
     JOIN plans p ON ((p.name = o.plan)));

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
    ('snapshots', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('ssh_host_key', '{SELECT,INSERT,UPDATE}'),
    ('ssh_keys', '{SELECT,INSERT,DELETE}'),
    ('stream_tickets', '{SELECT,INSERT,DELETE}'),
    ('usage_days', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('usage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('users', '{SELECT,INSERT,UPDATE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
