-- Members sign in in a browser. A session belongs to a membership and ends with it. Its secret and that of a link are stored as SHA-256.
ALTER TABLE members ADD COLUMN is_operator boolean NOT NULL DEFAULT false;

-- is_confined: a link that the organization itself made opened it, so it opens no other organization of the person.
CREATE TABLE member_sessions (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  secret_sha256 bytea NOT NULL,
  signed_in_by text NOT NULL,
  is_confined boolean NOT NULL,
  user_agent text,
  created_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT member_sessions_pkey PRIMARY KEY (id),
  CONSTRAINT member_sessions_secret_key UNIQUE (secret_sha256),
  CONSTRAINT member_sessions_member_fkey FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE,
  CONSTRAINT member_sessions_secret_length CHECK (octet_length(secret_sha256) = 32),
  CONSTRAINT member_sessions_signed_in_by_known CHECK (signed_in_by IN ('link', 'oidc')),
  CONSTRAINT member_sessions_user_agent_length CHECK (length(user_agent) <= 256)
);
CREATE INDEX member_sessions_of_member ON member_sessions (org_id, user_id);
CREATE INDEX member_sessions_of_user ON member_sessions (user_id);
CREATE INDEX member_sessions_expiry ON member_sessions (expires_at);
ALTER TABLE member_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE member_sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON member_sessions USING (sandyard_sees(org_id));

-- At most one link of each membership works. Its row is deleted when it is used.
CREATE TABLE sign_in_links (
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  secret_sha256 bytea NOT NULL,
  is_confined boolean NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT sign_in_links_pkey PRIMARY KEY (org_id, user_id),
  CONSTRAINT sign_in_links_secret_key UNIQUE (secret_sha256),
  CONSTRAINT sign_in_links_member_fkey FOREIGN KEY (org_id, user_id) REFERENCES members (org_id, user_id) ON DELETE CASCADE,
  CONSTRAINT sign_in_links_secret_length CHECK (octet_length(secret_sha256) = 32)
);
CREATE INDEX sign_in_links_expiry ON sign_in_links (expires_at);
ALTER TABLE sign_in_links ENABLE ROW LEVEL SECURITY;
ALTER TABLE sign_in_links FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sign_in_links USING (sandyard_sees(org_id));

-- Who a person is at a provider of OpenID Connect: one subject of each issuer.
CREATE TABLE user_identities (
  issuer text NOT NULL,
  subject text NOT NULL,
  user_id uuid NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT user_identities_pkey PRIMARY KEY (issuer, subject),
  CONSTRAINT user_identities_issuer_user_key UNIQUE (issuer, user_id),
  CONSTRAINT user_identities_user_fkey FOREIGN KEY (user_id) REFERENCES users (id)
);
CREATE INDEX user_identities_of_user ON user_identities (user_id);
ALTER TABLE user_identities ENABLE ROW LEVEL SECURITY;
ALTER TABLE user_identities FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON user_identities USING (sandyard_is_system());

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
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
