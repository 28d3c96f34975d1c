-- Every table of a tenant carries org_id. Row-level security reads the setting sandyard.org, which the program sets on
-- each connection: an organization's id, or * for the program's own loops. A connection that has set nothing sees nothing.

CREATE FUNCTION sandyard_sees(org uuid) RETURNS boolean
  LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT current_setting('sandyard.org', true) IN ('*', org::text) $$;

CREATE FUNCTION sandyard_is_system() RETURNS boolean
  LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT current_setting('sandyard.org', true) = '*' $$;

CREATE TABLE orgs (
  id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  mfa_required boolean NOT NULL DEFAULT false,
  suspended_at timestamptz,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT orgs_pkey PRIMARY KEY (id),
  CONSTRAINT orgs_slug_key UNIQUE (slug),
  CONSTRAINT orgs_name_length CHECK (octet_length(name) BETWEEN 1 AND 128)
);

CREATE TABLE users (
  id uuid NOT NULL,
  email text NOT NULL,
  display_name text,
  created_at timestamptz NOT NULL,
  CONSTRAINT users_pkey PRIMARY KEY (id),
  CONSTRAINT users_email_key UNIQUE (email)
);

CREATE TABLE members (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  role text NOT NULL,
  joined_at timestamptz NOT NULL,
  CONSTRAINT members_pkey PRIMARY KEY (id),
  CONSTRAINT members_org_user_key UNIQUE (org_id, user_id),
  CONSTRAINT members_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT members_user_fkey FOREIGN KEY (user_id) REFERENCES users (id),
  CONSTRAINT members_role_known CHECK (role IN ('owner', 'admin', 'member', 'viewer'))
);

-- The secret of a key is never stored, only its SHA-256; it has 256 random bits, so no salt is needed.
CREATE TABLE api_keys (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  role text NOT NULL,
  secret_sha256 bytea NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  CONSTRAINT api_keys_pkey PRIMARY KEY (id),
  CONSTRAINT api_keys_secret_key UNIQUE (secret_sha256),
  CONSTRAINT api_keys_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT api_keys_role_known CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
  CONSTRAINT api_keys_secret_length CHECK (octet_length(secret_sha256) = 32)
);

-- Passwords are sealed with the installation's key (AES-256-GCM) before they get here.
CREATE TABLE registry_credentials (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  host text NOT NULL,
  username text NOT NULL,
  password_sealed bytea NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT registry_credentials_pkey PRIMARY KEY (id),
  CONSTRAINT registry_credentials_org_host_key UNIQUE (org_id, host),
  CONSTRAINT registry_credentials_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);

CREATE TABLE volumes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  kind text NOT NULL,
  name text,
  status text NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT volumes_pkey PRIMARY KEY (id),
  CONSTRAINT volumes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT volumes_kind_known CHECK (kind IN ('host', 'managed')),
  CONSTRAINT volumes_status_known CHECK (status IN ('active', 'deleting')),
  CONSTRAINT volumes_host_has_no_name CHECK ((kind = 'host') = (name IS NULL))
);
CREATE UNIQUE INDEX volumes_one_host ON volumes (org_id) WHERE kind = 'host';
CREATE UNIQUE INDEX volumes_name_key ON volumes (org_id, name) WHERE kind = 'managed';

CREATE TABLE workers (
  id uuid NOT NULL,
  name text NOT NULL,
  credential_sha256 bytea NOT NULL,
  vcpus integer NOT NULL DEFAULT 0,
  memory_mib integer NOT NULL DEFAULT 0,
  disk_mib bigint NOT NULL DEFAULT 0,
  driver jsonb,
  lease_expires_at timestamptz,
  created_at timestamptz NOT NULL,
  CONSTRAINT workers_pkey PRIMARY KEY (id),
  CONSTRAINT workers_name_key UNIQUE (name),
  CONSTRAINT workers_credential_key UNIQUE (credential_sha256)
);

-- visible_until: null while the sandbox is a client's; from then on its name and slug are free, and it can be read by
-- id and name until that time (at once over for a deleted one, some seconds for an ephemeral one that ended).
-- home_worker_id: where its writable layer lies, once it has been placed.
CREATE TABLE sandboxes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  status text NOT NULL,
  status_reason text,
  ephemeral boolean NOT NULL,
  last_failure_message text,
  created_at timestamptz NOT NULL,
  started_at timestamptz,
  stopped_at timestamptz,
  visible_until timestamptz,
  home_worker_id uuid,
  vcpus integer NOT NULL,
  memory_mib integer NOT NULL,
  abilities text[] NOT NULL,
  spec json NOT NULL,
  spec_projection json NOT NULL,
  registry json NOT NULL,
  registry_sealed bytea,
  CONSTRAINT sandboxes_pkey PRIMARY KEY (id),
  CONSTRAINT sandboxes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT sandboxes_home_worker_fkey FOREIGN KEY (home_worker_id) REFERENCES workers (id),
  CONSTRAINT sandboxes_status_known CHECK (status IN ('created', 'starting', 'running', 'stopping', 'stopped', 'failed')),
  CONSTRAINT sandboxes_reason_known CHECK (status_reason IN ('scheduling', 'insufficient_capacity')),
  CONSTRAINT sandboxes_reason_while_starting CHECK (status_reason IS NULL OR status = 'starting'),
  CONSTRAINT sandboxes_name_length CHECK (octet_length(name) BETWEEN 1 AND 128),
  CONSTRAINT sandboxes_slug_shape CHECK (slug ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND length(slug) BETWEEN 3 AND 63)
);
CREATE UNIQUE INDEX sandboxes_name_key ON sandboxes (org_id, name) WHERE visible_until IS NULL;
CREATE UNIQUE INDEX sandboxes_slug_key ON sandboxes (slug) WHERE visible_until IS NULL;
CREATE INDEX sandboxes_page ON sandboxes (org_id, id DESC) WHERE visible_until IS NULL;
CREATE INDEX sandboxes_leaving_name ON sandboxes (org_id, name, visible_until) WHERE visible_until IS NOT NULL;

-- A row a label, so that a page by label is one walk of an index at any selectivity (measured: docs/decisions/0002).
CREATE TABLE sandbox_labels (
  org_id uuid NOT NULL,
  key text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  sandbox_id uuid NOT NULL,
  CONSTRAINT sandbox_labels_pkey PRIMARY KEY (org_id, key, value, sandbox_id),
  CONSTRAINT sandbox_labels_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes (id)
);
CREATE INDEX sandbox_labels_sandbox ON sandbox_labels (sandbox_id);

-- One row a start. The metered interval is started_at to ended_at.
CREATE TABLE runs (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  worker_id uuid,
  vcpus integer NOT NULL,
  memory_mib integer NOT NULL,
  opened_at timestamptz NOT NULL,
  placed_at timestamptz,
  started_at timestamptz,
  deadline_at timestamptz,
  stop_requested_at timestamptz,
  stop_cause text,
  ended_at timestamptz,
  outcome jsonb,
  CONSTRAINT runs_pkey PRIMARY KEY (id),
  CONSTRAINT runs_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT runs_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes (id),
  CONSTRAINT runs_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers (id),
  CONSTRAINT runs_placed_has_worker CHECK ((placed_at IS NULL) = (worker_id IS NULL)),
  CONSTRAINT runs_order CHECK (ended_at IS NULL OR started_at IS NULL OR ended_at >= started_at)
);
CREATE UNIQUE INDEX runs_one_open ON runs (sandbox_id) WHERE ended_at IS NULL;
CREATE INDEX runs_pending ON runs (opened_at) WHERE ended_at IS NULL AND worker_id IS NULL;
CREATE INDEX runs_of_worker ON runs (worker_id) WHERE ended_at IS NULL;
CREATE INDEX runs_deadline ON runs (deadline_at) WHERE ended_at IS NULL AND stop_requested_at IS NULL;
CREATE INDEX runs_of_sandbox ON runs (sandbox_id, opened_at DESC);

-- Append-only. The id is a UUIDv7 of the timestamp, so that a range of time is a range of ids.
CREATE TABLE events (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  timestamp timestamptz NOT NULL,
  category text NOT NULL,
  event_type text NOT NULL,
  sandbox_id uuid,
  actor json NOT NULL,
  payload json NOT NULL,
  CONSTRAINT events_pkey PRIMARY KEY (id),
  CONSTRAINT events_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
CREATE INDEX events_page ON events (org_id, id DESC);
CREATE INDEX events_page_by_type ON events (org_id, event_type, id DESC);

CREATE FUNCTION sandyard_refuse_change() RETURNS trigger LANGUAGE plpgsql
  AS $$ BEGIN RAISE EXCEPTION 'audit events are append-only'; END $$;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
  FOR EACH STATEMENT EXECUTE FUNCTION sandyard_refuse_change();

ALTER TABLE orgs ENABLE ROW LEVEL SECURITY;
ALTER TABLE orgs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON orgs USING (sandyard_sees(id));
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
ALTER TABLE users FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON users USING (sandyard_is_system());
ALTER TABLE workers ENABLE ROW LEVEL SECURITY;
ALTER TABLE workers FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON workers USING (sandyard_is_system());
ALTER TABLE members ENABLE ROW LEVEL SECURITY;
ALTER TABLE members FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON members USING (sandyard_sees(org_id));
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON api_keys USING (sandyard_sees(org_id));
ALTER TABLE registry_credentials ENABLE ROW LEVEL SECURITY;
ALTER TABLE registry_credentials FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON registry_credentials USING (sandyard_sees(org_id));
ALTER TABLE volumes ENABLE ROW LEVEL SECURITY;
ALTER TABLE volumes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON volumes USING (sandyard_sees(org_id));
ALTER TABLE sandboxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandboxes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sandboxes USING (sandyard_sees(org_id));
ALTER TABLE sandbox_labels ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_labels FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sandbox_labels USING (sandyard_sees(org_id));
ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE runs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON runs USING (sandyard_sees(org_id));
ALTER TABLE events ENABLE ROW LEVEL SECURITY;
ALTER TABLE events FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON events USING (sandyard_sees(org_id));
