-- The certificate authorities of organizations that sign what sandboxes see of intercepted TLS connections. A run has the
-- oldest one that was not replaced when the run was opened. key_sealed: sealed with the installation's sealing key.
CREATE TABLE intercept_authorities (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  certificate text NOT NULL,
  key_sealed bytea NOT NULL,
  created_at timestamptz NOT NULL,
  replaced_at timestamptz,
  CONSTRAINT intercept_authorities_pkey PRIMARY KEY (id),
  CONSTRAINT intercept_authorities_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
CREATE UNIQUE INDEX intercept_authorities_current ON intercept_authorities (org_id) WHERE replaced_at IS NULL;
CREATE INDEX intercept_authorities_org ON intercept_authorities (org_id);
ALTER TABLE intercept_authorities ENABLE ROW LEVEL SECURITY;
ALTER TABLE intercept_authorities FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON intercept_authorities USING (sandyard_sees(org_id));

-- tls_key_sealed: the key of the certificate authority that the sandbox's request gave, sealed with the installation's
-- sealing key. Null: it gave none, or the sandbox was deleted.
ALTER TABLE sandboxes ADD COLUMN tls_key_sealed bytea;

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
    ('stream_tickets', '{SELECT,INSERT,DELETE}'),
    ('usage_days', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('usage_org_days', '{SELECT,INSERT,UPDATE}'),
    ('users', '{SELECT,INSERT,UPDATE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
