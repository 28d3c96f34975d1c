-- The public keys with which an organization's people reach its sandboxes over SSH. public_key: the type and the base64 of the
-- OpenSSH format, without the comment. fingerprint: SHA256:… as `ssh-keygen -l` prints it.
CREATE TABLE ssh_keys (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  public_key text NOT NULL,
  fingerprint text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT ssh_keys_pkey PRIMARY KEY (id),
  CONSTRAINT ssh_keys_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT ssh_keys_org_fingerprint_key UNIQUE (org_id, fingerprint)
);
CREATE INDEX ssh_keys_page ON ssh_keys (org_id, id);
ALTER TABLE ssh_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE ssh_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON ssh_keys USING (sandyard_sees(org_id));

-- The key by which all server processes identify themselves to SSH clients, sealed with the installation's sealing key.
CREATE TABLE ssh_host_key (
  is_the_one boolean NOT NULL DEFAULT true,
  public_key text NOT NULL,
  key_sealed bytea NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT ssh_host_key_pkey PRIMARY KEY (is_the_one),
  CONSTRAINT ssh_host_key_only_one CHECK (is_the_one)
);
ALTER TABLE ssh_host_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE ssh_host_key FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON ssh_host_key USING (sandyard_is_system());

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
