-- Made from the migrations by dumpSchema (src/store/postgres/schema-dump.ts); do not edit.

CREATE OR REPLACE FUNCTION public.sandyard_add_label_pairs()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  WITH wide AS (SELECT sandbox_id FROM changed GROUP BY sandbox_id HAVING count(*) > 16)
  INSERT INTO sandbox_label_pairs (org_id, pair, sandbox_id)
  SELECT a.org_id, sandyard_label_pair(a.key, a.value, b.key, b.value), a.sandbox_id
  FROM changed a JOIN changed b ON b.sandbox_id = a.sandbox_id AND a.key < b.key
  WHERE a.sandbox_id NOT IN (SELECT sandbox_id FROM wide)
  UNION ALL
  SELECT org_id, sandyard_label_pair(key, value, '', ''), sandbox_id FROM changed
  WHERE sandbox_id IN (SELECT sandbox_id FROM wide)
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_drop_label_pairs()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  DELETE FROM sandbox_label_pairs p USING (
    SELECT a.org_id, sandyard_label_pair(a.key, a.value, b.key, b.value) AS pair, a.sandbox_id
    FROM changed a JOIN changed b ON b.sandbox_id = a.sandbox_id AND a.key < b.key
    UNION ALL
    SELECT org_id, sandyard_label_pair(key, value, '', ''), sandbox_id FROM changed) gone
  WHERE p.org_id = gone.org_id AND p.pair = gone.pair AND p.sandbox_id = gone.sandbox_id;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_is_system()
 RETURNS boolean
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$ SELECT current_setting('sandyard.org', true) = '*' $function$;

CREATE OR REPLACE FUNCTION public.sandyard_label_pair(key text, value text, other_key text, other_value text)
 RETURNS bytea
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
RETURN SUBSTRING(sha256(convert_to(concat_ws(''::text, key, value, other_key, other_value), 'UTF8'::name)) FROM 1 FOR 8);

CREATE OR REPLACE FUNCTION public.sandyard_limit(plan_limits jsonb, overrides jsonb, name text)
 RETURNS integer
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT (CASE WHEN overrides ? name THEN overrides ->> name ELSE plan_limits ->> name END)::integer $function$;

CREATE OR REPLACE FUNCTION public.sandyard_ms(at timestamp with time zone)
 RETURNS bigint
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$ SELECT (date_part('epoch', at) * 1000)::bigint $function$;

CREATE OR REPLACE FUNCTION public.sandyard_open_run(of_sandbox uuid)
 RETURNS TABLE(id uuid, worker_id uuid, started_at timestamp with time zone)
 LANGUAGE sql
AS $function$ SELECT r.id, r.worker_id, r.started_at FROM runs r WHERE r.sandbox_id = of_sandbox AND r.ended_at IS NULL $function$;

CREATE OR REPLACE FUNCTION public.sandyard_org()
 RETURNS uuid
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$ SELECT nullif(nullif(current_setting('sandyard.org', true), '*'), '')::uuid $function$;

CREATE OR REPLACE FUNCTION public.sandyard_org_limits_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY(
    SELECT v.home_worker_id FROM new_rows o JOIN volumes v ON v.org_id = o.id WHERE v.home_worker_id IS NOT NULL));
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_plan_limits_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY(
    SELECT v.home_worker_id FROM new_rows p JOIN orgs o ON o.plan = p.name JOIN volumes v ON v.org_id = o.id
    WHERE v.home_worker_id IS NOT NULL));
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_prune_events(before timestamp with time zone, after uuid, at_most integer, OUT count integer, OUT last uuid)
 RETURNS record
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE first_kept uuid := (lpad(to_hex(floor(extract(epoch FROM before) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;
BEGIN
  IF before > now() - interval '1 day' THEN RAISE EXCEPTION 'audit events are kept for a day at least'; END IF;
  PERFORM set_config('sandyard.prunes_events', 'on', true);
  WITH gone AS (
    DELETE FROM events WHERE id = ANY(ARRAY(
      SELECT e.id FROM events e WHERE e.id > after AND e.id < first_kept AND e.timestamp < before
        AND (e.event_type <> 'pool_exhausted' OR e.timestamp < now() - interval '32 days')
      ORDER BY e.id LIMIT at_most))
    RETURNING id)
  SELECT count(*), (SELECT g.id FROM gone g ORDER BY g.id DESC LIMIT 1) INTO count, last FROM gone;
  PERFORM set_config('sandyard.prunes_events', 'off', true);
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_raise_generations(of_workers uuid[])
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'public', 'pg_temp'
AS $function$
DECLARE seen_org text := current_setting('sandyard.org', true);
BEGIN
  PERFORM set_config('sandyard.org', '*', true);
  INSERT INTO worker_generations AS g (worker_id, generation)
  SELECT DISTINCT w.id, 1 FROM unnest(of_workers) AS w(id) ORDER BY w.id
  ON CONFLICT (worker_id) DO UPDATE SET generation = g.generation + 1;
  PERFORM set_config('sandyard.org', seen_org, true);
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_refuse_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('sandyard.prunes_events', true) = 'on'
     AND pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'audit events are append-only';
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_runs_added()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(DISTINCT worker_id) INTO of_workers FROM new_rows WHERE worker_id IS NOT NULL;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, count(*) FILTER (WHERE is_ephemeral), count(*) FILTER (WHERE NOT is_ephemeral)
  FROM new_rows WHERE ended_at IS NULL AND stop_requested_at IS NULL GROUP BY org_id;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_runs_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_runs_removed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, -count(*) FILTER (WHERE is_ephemeral), -count(*) FILTER (WHERE NOT is_ephemeral)
  FROM old_rows WHERE ended_at IS NULL AND stop_requested_at IS NULL GROUP BY org_id;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_sandbox_renamed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY[NEW.home_worker_id]);
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_sandboxes_added()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, count(*), 0, 0 FROM new_rows WHERE visible_until IS NULL GROUP BY org_id;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_sandboxes_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_sandboxes_removed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, -count(*), 0, 0 FROM old_rows WHERE visible_until IS NULL GROUP BY org_id;
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_secrets_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY[NEW.home_worker_id]);
  RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION public.sandyard_server_rights()
 RETURNS TABLE(relation text, rights text[])
 LANGUAGE sql
 IMMUTABLE
AS $function$
  VALUES
    ('api_keys', '{SELECT,INSERT,UPDATE,DELETE}'::text[]),
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
    ('users', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('volumes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('webhook_deliveries', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('webhook_progress', '{SELECT,INSERT,UPDATE}'),
    ('webhooks', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $function$;

CREATE OR REPLACE FUNCTION public.sandyard_volumes_changed()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(home_worker_id) INTO of_workers FROM (
    SELECT home_worker_id FROM (
      SELECT id, home_worker_id, status, capacity_gib, emptied_at IS NULL AS is_there FROM old_rows
      UNION ALL
      SELECT id, home_worker_id, status, capacity_gib, emptied_at IS NULL FROM new_rows) v
    WHERE home_worker_id IS NOT NULL GROUP BY id, home_worker_id, status, capacity_gib, is_there HAVING count(*) = 1) c;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  RETURN NULL;
END $function$;

CREATE TABLE api_keys (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  secret_sha256 bytea NOT NULL,
  created_at timestamp with time zone NOT NULL,
  expires_at timestamp with time zone,
  revoked_at timestamp with time zone,
  last_used_at timestamp with time zone,
  scopes text[] NOT NULL,
  is_operator boolean DEFAULT false NOT NULL,
  CONSTRAINT api_keys_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT api_keys_pkey PRIMARY KEY (id),
  CONSTRAINT api_keys_scopes_known CHECK (((scopes <@ '{read,write,admin}'::text[]) AND ((cardinality(scopes) >= 1) AND (cardinality(scopes) <= 3)))),
  CONSTRAINT api_keys_secret_key UNIQUE (secret_sha256),
  CONSTRAINT api_keys_secret_length CHECK ((octet_length(secret_sha256) = 32))
);
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;

CREATE TABLE events (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  "timestamp" timestamp with time zone NOT NULL,
  category text NOT NULL,
  event_type text NOT NULL,
  sandbox_id uuid,
  actor json NOT NULL,
  payload json NOT NULL,
  actor_key text GENERATED ALWAYS AS (NULLIF(COALESCE((actor ->> 'api_key_id'::text), (actor ->> 'user_id'::text), (actor ->> 'key_id'::text), (actor ->> 'code'::text)), 'sandyard'::text)) STORED,
  xact xid8 DEFAULT pg_current_xact_id(),
  CONSTRAINT events_pkey PRIMARY KEY (id)
);
ALTER TABLE events ENABLE ROW LEVEL SECURITY;
ALTER TABLE events FORCE ROW LEVEL SECURITY;

CREATE TABLE idempotency (
  org_id uuid NOT NULL,
  key text COLLATE "C" NOT NULL,
  request_sha256 bytea NOT NULL,
  id uuid NOT NULL,
  claim uuid NOT NULL,
  claimed_until timestamp with time zone NOT NULL,
  tries integer NOT NULL,
  note bytea,
  reply_sealed bytea,
  created_at timestamp with time zone NOT NULL,
  expires_at timestamp with time zone NOT NULL,
  CONSTRAINT idempotency_key_length CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255))),
  CONSTRAINT idempotency_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT idempotency_pkey PRIMARY KEY (org_id, key),
  CONSTRAINT idempotency_request_length CHECK ((octet_length(request_sha256) = 32)),
  CONSTRAINT idempotency_tries_positive CHECK ((tries > 0))
);
ALTER TABLE idempotency ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency FORCE ROW LEVEL SECURITY;

CREATE TABLE intercept_authorities (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  certificate text NOT NULL,
  key_sealed bytea NOT NULL,
  created_at timestamp with time zone NOT NULL,
  replaced_at timestamp with time zone,
  CONSTRAINT intercept_authorities_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT intercept_authorities_pkey PRIMARY KEY (id)
);
ALTER TABLE intercept_authorities ENABLE ROW LEVEL SECURITY;
ALTER TABLE intercept_authorities FORCE ROW LEVEL SECURITY;

CREATE TABLE leads (
  name text NOT NULL,
  holder uuid,
  epoch bigint NOT NULL,
  beats bigint NOT NULL,
  CONSTRAINT leads_counts_positive CHECK (((epoch >= 0) AND (beats >= 0))),
  CONSTRAINT leads_epoch_key UNIQUE (name, epoch),
  CONSTRAINT leads_pkey PRIMARY KEY (name)
);
ALTER TABLE leads ENABLE ROW LEVEL SECURITY;
ALTER TABLE leads FORCE ROW LEVEL SECURITY;

CREATE TABLE machine_clocks (
  boot_id uuid NOT NULL,
  booted_at timestamp with time zone NOT NULL,
  CONSTRAINT machine_clocks_pkey PRIMARY KEY (boot_id)
);
ALTER TABLE machine_clocks ENABLE ROW LEVEL SECURITY;
ALTER TABLE machine_clocks FORCE ROW LEVEL SECURITY;

CREATE TABLE member_sessions (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  secret_sha256 bytea NOT NULL,
  signed_in_by text NOT NULL,
  is_confined boolean NOT NULL,
  user_agent text,
  created_at timestamp with time zone NOT NULL,
  last_seen_at timestamp with time zone NOT NULL,
  expires_at timestamp with time zone NOT NULL,
  CONSTRAINT member_sessions_member_fkey FOREIGN KEY (org_id, user_id) REFERENCES members(org_id, user_id) ON DELETE CASCADE,
  CONSTRAINT member_sessions_pkey PRIMARY KEY (id),
  CONSTRAINT member_sessions_secret_key UNIQUE (secret_sha256),
  CONSTRAINT member_sessions_secret_length CHECK ((octet_length(secret_sha256) = 32)),
  CONSTRAINT member_sessions_signed_in_by_known CHECK ((signed_in_by = ANY (ARRAY['link'::text, 'oidc'::text]))),
  CONSTRAINT member_sessions_user_agent_length CHECK ((length(user_agent) <= 256))
);
ALTER TABLE member_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE member_sessions FORCE ROW LEVEL SECURITY;

CREATE TABLE members (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  role text NOT NULL,
  joined_at timestamp with time zone NOT NULL,
  is_operator boolean DEFAULT false NOT NULL,
  CONSTRAINT members_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT members_org_user_key UNIQUE (org_id, user_id),
  CONSTRAINT members_pkey PRIMARY KEY (id),
  CONSTRAINT members_role_known CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'viewer'::text]))),
  CONSTRAINT members_user_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);
ALTER TABLE members ENABLE ROW LEVEL SECURITY;
ALTER TABLE members FORCE ROW LEVEL SECURITY;

CREATE TABLE org_count_deltas (
  org_id uuid NOT NULL,
  sandboxes integer NOT NULL,
  ephemeral_runs integer NOT NULL,
  persistent_runs integer NOT NULL
);
ALTER TABLE org_count_deltas ENABLE ROW LEVEL SECURITY;
ALTER TABLE org_count_deltas FORCE ROW LEVEL SECURITY;

CREATE TABLE org_counts (
  org_id uuid NOT NULL,
  sandboxes bigint NOT NULL,
  ephemeral_runs bigint NOT NULL,
  persistent_runs bigint NOT NULL,
  CONSTRAINT org_counts_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT org_counts_pkey PRIMARY KEY (org_id)
);
ALTER TABLE org_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE org_counts FORCE ROW LEVEL SECURITY;

CREATE TABLE orgs (
  id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  mfa_required boolean DEFAULT false NOT NULL,
  suspended_at timestamp with time zone,
  created_at timestamp with time zone NOT NULL,
  updated_at timestamp with time zone NOT NULL,
  plan text DEFAULT 'unlimited'::text NOT NULL,
  quota_overrides jsonb DEFAULT '{}'::jsonb NOT NULL,
  network_allow text[] DEFAULT '{}'::text[] NOT NULL,
  CONSTRAINT orgs_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128))),
  CONSTRAINT orgs_network_allow_bound CHECK ((cardinality(network_allow) <= 64)),
  CONSTRAINT orgs_overrides_object CHECK ((jsonb_typeof(quota_overrides) = 'object'::text)),
  CONSTRAINT orgs_pkey PRIMARY KEY (id),
  CONSTRAINT orgs_plan_fkey FOREIGN KEY (plan) REFERENCES plans(name),
  CONSTRAINT orgs_slug_key UNIQUE (slug)
);
ALTER TABLE orgs ENABLE ROW LEVEL SECURITY;
ALTER TABLE orgs FORCE ROW LEVEL SECURITY;

CREATE TABLE plans (
  name text NOT NULL,
  limits jsonb NOT NULL,
  prices jsonb,
  updated_at timestamp with time zone NOT NULL,
  CONSTRAINT plans_limits_object CHECK ((jsonb_typeof(limits) = 'object'::text)),
  CONSTRAINT plans_name_shape CHECK (((name ~ '^[a-z0-9]+(-[a-z0-9]+)*$'::text) AND (length(name) <= 63))),
  CONSTRAINT plans_pkey PRIMARY KEY (name),
  CONSTRAINT plans_prices_object CHECK (((prices IS NULL) OR (jsonb_typeof(prices) = 'object'::text)))
);
ALTER TABLE plans ENABLE ROW LEVEL SECURITY;
ALTER TABLE plans FORCE ROW LEVEL SECURITY;

CREATE TABLE previews (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  port integer NOT NULL,
  access text NOT NULL,
  secret_sha256 bytea,
  expires_at timestamp with time zone,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT previews_access CHECK ((((access = 'link'::text) = (secret_sha256 IS NOT NULL)) AND (access = ANY (ARRAY['link'::text, 'public'::text])))),
  CONSTRAINT previews_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT previews_pkey PRIMARY KEY (id),
  CONSTRAINT previews_port CHECK (((port >= 1) AND (port <= 65535))),
  CONSTRAINT previews_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes(id) ON DELETE CASCADE
);
ALTER TABLE previews ENABLE ROW LEVEL SECURITY;
ALTER TABLE previews FORCE ROW LEVEL SECURITY;

CREATE TABLE pruned_sandboxes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  home_worker_id uuid,
  pruned_at timestamp with time zone NOT NULL,
  CONSTRAINT pruned_sandboxes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT pruned_sandboxes_pkey PRIMARY KEY (id)
);
ALTER TABLE pruned_sandboxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE pruned_sandboxes FORCE ROW LEVEL SECURITY;

CREATE TABLE registry_credentials (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  host text NOT NULL,
  username text NOT NULL,
  password_sealed bytea NOT NULL,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT registry_credentials_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT registry_credentials_org_host_key UNIQUE (org_id, host),
  CONSTRAINT registry_credentials_pkey PRIMARY KEY (id)
);
ALTER TABLE registry_credentials ENABLE ROW LEVEL SECURITY;
ALTER TABLE registry_credentials FORCE ROW LEVEL SECURITY;

CREATE TABLE replicas (
  id uuid NOT NULL,
  url text,
  version text NOT NULL,
  schema_version integer NOT NULL,
  started_at timestamp with time zone NOT NULL,
  seen_at timestamp with time zone NOT NULL,
  CONSTRAINT replicas_pkey PRIMARY KEY (id)
);
ALTER TABLE replicas ENABLE ROW LEVEL SECURITY;
ALTER TABLE replicas FORCE ROW LEVEL SECURITY;

CREATE TABLE retention_horizons (
  kind text NOT NULL,
  before timestamp with time zone NOT NULL,
  CONSTRAINT retention_horizons_kind_known CHECK ((kind = ANY (ARRAY['runs'::text, 'usage'::text, 'clock'::text]))),
  CONSTRAINT retention_horizons_pkey PRIMARY KEY (kind)
);
ALTER TABLE retention_horizons ENABLE ROW LEVEL SECURITY;
ALTER TABLE retention_horizons FORCE ROW LEVEL SECURITY;

CREATE TABLE runs (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  worker_id uuid,
  vcpus integer NOT NULL,
  memory_mib integer NOT NULL,
  opened_at timestamp with time zone NOT NULL,
  placed_at timestamp with time zone,
  started_at timestamp with time zone,
  deadline_at timestamp with time zone,
  stop_requested_at timestamp with time zone,
  stop_cause text,
  ended_at timestamp with time zone,
  outcome jsonb,
  is_ephemeral boolean DEFAULT false NOT NULL,
  disk_mib integer DEFAULT 0 NOT NULL,
  rolled_up_at timestamp with time zone,
  waits_since timestamp with time zone,
  memory_kills integer DEFAULT 0 NOT NULL,
  trace_parent text,
  secrets_sealed bytea,
  ports jsonb,
  CONSTRAINT runs_memory_kills_check CHECK ((memory_kills >= 0)),
  CONSTRAINT runs_order CHECK (((ended_at IS NULL) OR (started_at IS NULL) OR (ended_at >= started_at))),
  CONSTRAINT runs_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT runs_pkey PRIMARY KEY (id),
  CONSTRAINT runs_placed_has_worker CHECK (((placed_at IS NULL) = (worker_id IS NULL))),
  CONSTRAINT runs_rolled_up_last CHECK (((rolled_up_at IS NULL) OR ((ended_at IS NOT NULL) AND (started_at IS NOT NULL)))),
  CONSTRAINT runs_trace_parent_check CHECK ((trace_parent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'::text)),
  CONSTRAINT runs_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers(id)
);
ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE runs FORCE ROW LEVEL SECURITY;

CREATE TABLE sandbox_label_pairs (
  org_id uuid NOT NULL,
  pair bytea NOT NULL,
  sandbox_id uuid NOT NULL,
  CONSTRAINT sandbox_label_pairs_length CHECK ((octet_length(pair) = 8)),
  CONSTRAINT sandbox_label_pairs_pkey PRIMARY KEY (org_id, pair, sandbox_id)
);
ALTER TABLE sandbox_label_pairs ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_label_pairs FORCE ROW LEVEL SECURITY;

CREATE TABLE sandbox_labels (
  org_id uuid NOT NULL,
  key text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  sandbox_id uuid NOT NULL,
  CONSTRAINT sandbox_labels_pkey PRIMARY KEY (org_id, key, value, sandbox_id),
  CONSTRAINT sandbox_labels_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes(id)
);
ALTER TABLE sandbox_labels ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_labels FORCE ROW LEVEL SECURITY;

CREATE TABLE sandbox_volumes (
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  volume_id uuid NOT NULL,
  CONSTRAINT sandbox_volumes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT sandbox_volumes_pkey PRIMARY KEY (sandbox_id, volume_id),
  CONSTRAINT sandbox_volumes_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes(id)
);
ALTER TABLE sandbox_volumes ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_volumes FORCE ROW LEVEL SECURITY;

CREATE TABLE sandboxes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  status text NOT NULL,
  status_reason text,
  ephemeral boolean NOT NULL,
  last_failure_message text,
  created_at timestamp with time zone NOT NULL,
  started_at timestamp with time zone,
  stopped_at timestamp with time zone,
  visible_until timestamp with time zone,
  home_worker_id uuid,
  vcpus integer NOT NULL,
  memory_mib integer NOT NULL,
  abilities text[] NOT NULL,
  spec json NOT NULL,
  spec_projection json NOT NULL,
  registry json NOT NULL,
  registry_sealed bytea,
  run_id uuid,
  disk_size_mib integer,
  max_duration_secs bigint,
  projection_bytes integer,
  isolation text,
  restart_at timestamp with time zone,
  restart_count integer DEFAULT 0 NOT NULL,
  secrets_sealed bytea,
  secrets_version integer DEFAULT 0 NOT NULL,
  tls_key_sealed bytea,
  snapshot_id uuid,
  spec_bytes integer,
  spec_parts json,
  CONSTRAINT sandboxes_home_worker_fkey FOREIGN KEY (home_worker_id) REFERENCES workers(id),
  CONSTRAINT sandboxes_isolation CHECK ((isolation = ANY (ARRAY['container'::text, 'gvisor'::text, 'microvm'::text]))),
  CONSTRAINT sandboxes_name_length CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128))),
  CONSTRAINT sandboxes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT sandboxes_pkey PRIMARY KEY (id),
  CONSTRAINT sandboxes_reason_known CHECK ((status_reason = ANY (ARRAY['scheduling'::text, 'insufficient_capacity'::text]))),
  CONSTRAINT sandboxes_reason_while_starting CHECK (((status_reason IS NULL) OR (status = 'starting'::text))),
  CONSTRAINT sandboxes_restart_after_end CHECK (((restart_at IS NULL) OR (status = ANY (ARRAY['stopped'::text, 'failed'::text])))),
  CONSTRAINT sandboxes_restart_count_check CHECK ((restart_count >= 0)),
  CONSTRAINT sandboxes_secrets_version_check CHECK ((secrets_version >= 0)),
  CONSTRAINT sandboxes_slug_shape CHECK (((slug ~ '^[a-z0-9]+(-[a-z0-9]+)*$'::text) AND ((length(slug) >= 3) AND (length(slug) <= 63)))),
  CONSTRAINT sandboxes_status_known CHECK ((status = ANY (ARRAY['created'::text, 'starting'::text, 'running'::text, 'stopping'::text, 'stopped'::text, 'failed'::text])))
) WITH (fillfactor=65);
ALTER TABLE sandboxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandboxes FORCE ROW LEVEL SECURITY;

CREATE TABLE sandyard_migrations (
  id integer NOT NULL,
  name text NOT NULL,
  sha256 text NOT NULL,
  applied_at timestamp with time zone DEFAULT now() NOT NULL,
  breaking text,
  CONSTRAINT sandyard_migrations_pkey PRIMARY KEY (id)
);

CREATE TABLE sealing_key (
  is_the_one boolean NOT NULL,
  fingerprint bytea NOT NULL,
  CONSTRAINT sealing_key_fingerprint_length CHECK ((octet_length(fingerprint) = 32)),
  CONSTRAINT sealing_key_one_row CHECK (is_the_one),
  CONSTRAINT sealing_key_pkey PRIMARY KEY (is_the_one)
);
ALTER TABLE sealing_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE sealing_key FORCE ROW LEVEL SECURITY;

CREATE TABLE sign_in_links (
  org_id uuid NOT NULL,
  user_id uuid NOT NULL,
  secret_sha256 bytea NOT NULL,
  is_confined boolean NOT NULL,
  created_at timestamp with time zone NOT NULL,
  expires_at timestamp with time zone NOT NULL,
  CONSTRAINT sign_in_links_member_fkey FOREIGN KEY (org_id, user_id) REFERENCES members(org_id, user_id) ON DELETE CASCADE,
  CONSTRAINT sign_in_links_pkey PRIMARY KEY (org_id, user_id),
  CONSTRAINT sign_in_links_secret_key UNIQUE (secret_sha256),
  CONSTRAINT sign_in_links_secret_length CHECK ((octet_length(secret_sha256) = 32))
);
ALTER TABLE sign_in_links ENABLE ROW LEVEL SECURITY;
ALTER TABLE sign_in_links FORCE ROW LEVEL SECURITY;

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
  created_at timestamp with time zone NOT NULL,
  updated_at timestamp with time zone NOT NULL,
  completed_at timestamp with time zone,
  deleted_at timestamp with time zone,
  is_scheduled boolean DEFAULT false NOT NULL,
  accrued_until timestamp with time zone,
  CONSTRAINT snapshots_completed CHECK (((status = ANY (ARRAY['succeeded'::text, 'failed'::text])) = (completed_at IS NOT NULL))),
  CONSTRAINT snapshots_error CHECK (((status = 'failed'::text) = (error IS NOT NULL))),
  CONSTRAINT snapshots_operation_key UNIQUE (operation_id),
  CONSTRAINT snapshots_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT snapshots_pkey PRIMARY KEY (id),
  CONSTRAINT snapshots_result CHECK (((status = 'succeeded'::text) = ((disk_bytes IS NOT NULL) AND (size_bytes IS NOT NULL) AND (digest IS NOT NULL) AND (manifest IS NOT NULL)))),
  CONSTRAINT snapshots_sizes CHECK (((disk_bytes > 0) AND (size_bytes >= 0))),
  CONSTRAINT snapshots_status_known CHECK ((status = ANY (ARRAY['queued'::text, 'in_progress'::text, 'succeeded'::text, 'failed'::text]))),
  CONSTRAINT snapshots_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers(id)
);
ALTER TABLE snapshots ENABLE ROW LEVEL SECURITY;
ALTER TABLE snapshots FORCE ROW LEVEL SECURITY;

CREATE TABLE ssh_host_key (
  is_the_one boolean DEFAULT true NOT NULL,
  public_key text NOT NULL,
  key_sealed bytea NOT NULL,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT ssh_host_key_only_one CHECK (is_the_one),
  CONSTRAINT ssh_host_key_pkey PRIMARY KEY (is_the_one)
);
ALTER TABLE ssh_host_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE ssh_host_key FORCE ROW LEVEL SECURITY;

CREATE TABLE ssh_keys (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  public_key text NOT NULL,
  fingerprint text NOT NULL,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT ssh_keys_org_fingerprint_key UNIQUE (org_id, fingerprint),
  CONSTRAINT ssh_keys_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT ssh_keys_pkey PRIMARY KEY (id)
);
ALTER TABLE ssh_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE ssh_keys FORCE ROW LEVEL SECURITY;

CREATE TABLE storage_accruals (
  org_id uuid NOT NULL,
  volume_id uuid NOT NULL,
  from_at timestamp with time zone NOT NULL,
  to_at timestamp with time zone NOT NULL,
  used_bytes bigint NOT NULL,
  CONSTRAINT storage_accruals_order CHECK ((to_at > from_at)),
  CONSTRAINT storage_accruals_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT storage_accruals_pkey PRIMARY KEY (org_id, volume_id, from_at),
  CONSTRAINT storage_accruals_used_positive CHECK ((used_bytes >= 0))
);
ALTER TABLE storage_accruals ENABLE ROW LEVEL SECURITY;
ALTER TABLE storage_accruals FORCE ROW LEVEL SECURITY;

CREATE TABLE storage_org_days (
  org_id uuid NOT NULL,
  day date NOT NULL,
  byte_ms numeric NOT NULL,
  CONSTRAINT storage_org_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT storage_org_days_pkey PRIMARY KEY (org_id, day)
);
ALTER TABLE storage_org_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE storage_org_days FORCE ROW LEVEL SECURITY;

CREATE UNLOGGED TABLE stream_tickets (
  ticket text NOT NULL,
  worker_id uuid NOT NULL,
  url text NOT NULL,
  asked json NOT NULL,
  expires_at timestamp with time zone NOT NULL,
  CONSTRAINT stream_tickets_pkey PRIMARY KEY (ticket),
  CONSTRAINT stream_tickets_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers(id)
);
ALTER TABLE stream_tickets ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_tickets FORCE ROW LEVEL SECURITY;

CREATE TABLE usage_days (
  org_id uuid NOT NULL,
  day date NOT NULL,
  sandbox_id uuid NOT NULL,
  vcpu_ms bigint NOT NULL,
  memory_mib_ms bigint NOT NULL,
  disk_mib_ms bigint NOT NULL,
  all_day_vcpus bigint NOT NULL,
  all_day_memory_mib bigint NOT NULL,
  all_day_disk_mib bigint NOT NULL,
  CONSTRAINT usage_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT usage_days_pkey PRIMARY KEY (org_id, day, sandbox_id)
);
ALTER TABLE usage_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_days FORCE ROW LEVEL SECURITY;

CREATE TABLE usage_org_days (
  org_id uuid NOT NULL,
  day date NOT NULL,
  vcpu_ms numeric NOT NULL,
  memory_mib_ms numeric NOT NULL,
  disk_mib_ms numeric NOT NULL,
  all_day_vcpus bigint NOT NULL,
  all_day_memory_mib bigint NOT NULL,
  all_day_disk_mib bigint NOT NULL,
  CONSTRAINT usage_org_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT usage_org_days_pkey PRIMARY KEY (org_id, day)
);
ALTER TABLE usage_org_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_org_days FORCE ROW LEVEL SECURITY;

CREATE TABLE user_identities (
  issuer text NOT NULL,
  subject text NOT NULL,
  user_id uuid NOT NULL,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT user_identities_issuer_user_key UNIQUE (issuer, user_id),
  CONSTRAINT user_identities_pkey PRIMARY KEY (issuer, subject),
  CONSTRAINT user_identities_user_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);
ALTER TABLE user_identities ENABLE ROW LEVEL SECURITY;
ALTER TABLE user_identities FORCE ROW LEVEL SECURITY;

CREATE TABLE users (
  id uuid NOT NULL,
  email text NOT NULL,
  display_name text,
  created_at timestamp with time zone NOT NULL,
  avatar_url text,
  CONSTRAINT users_email_key UNIQUE (email),
  CONSTRAINT users_pkey PRIMARY KEY (id)
);
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
ALTER TABLE users FORCE ROW LEVEL SECURITY;

CREATE TABLE volumes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  kind text NOT NULL,
  name text,
  status text NOT NULL,
  created_at timestamp with time zone NOT NULL,
  updated_at timestamp with time zone NOT NULL,
  capacity_gib integer,
  labels jsonb DEFAULT '{}'::jsonb NOT NULL,
  home_worker_id uuid,
  is_shared boolean DEFAULT false NOT NULL,
  used_bytes bigint,
  accrued_until timestamp with time zone,
  emptied_at timestamp with time zone,
  CONSTRAINT volumes_capacity_positive CHECK ((capacity_gib >= 1)),
  CONSTRAINT volumes_emptied_last CHECK (((emptied_at IS NULL) OR (status = 'deleting'::text))),
  CONSTRAINT volumes_home_fkey FOREIGN KEY (home_worker_id) REFERENCES workers(id),
  CONSTRAINT volumes_host_has_no_name CHECK (((kind = 'host'::text) = (name IS NULL))),
  CONSTRAINT volumes_host_stays CHECK (((kind <> 'host'::text) OR ((status = 'active'::text) AND (capacity_gib IS NULL)))),
  CONSTRAINT volumes_kind_known CHECK ((kind = ANY (ARRAY['host'::text, 'managed'::text]))),
  CONSTRAINT volumes_one_home CHECK (((home_worker_id IS NULL) OR (NOT is_shared))),
  CONSTRAINT volumes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT volumes_pkey PRIMARY KEY (id),
  CONSTRAINT volumes_status_known CHECK ((status = ANY (ARRAY['active'::text, 'deleting'::text]))),
  CONSTRAINT volumes_used_positive CHECK ((used_bytes >= 0))
);
ALTER TABLE volumes ENABLE ROW LEVEL SECURITY;
ALTER TABLE volumes FORCE ROW LEVEL SECURITY;

CREATE TABLE webhook_deliveries (
  webhook_id uuid NOT NULL,
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  lane uuid NOT NULL,
  place bigint NOT NULL,
  status text DEFAULT 'waiting'::text NOT NULL,
  attempts integer DEFAULT 0 NOT NULL,
  tried_since timestamp with time zone,
  last_attempt_at timestamp with time zone,
  next_attempt_at timestamp with time zone,
  duration_ms integer,
  reply_status integer,
  reply_body text,
  error text,
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT webhook_deliveries_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (webhook_id, id),
  CONSTRAINT webhook_deliveries_status CHECK ((status = ANY (ARRAY['waiting'::text, 'delivered'::text, 'failed'::text]))),
  CONSTRAINT webhook_deliveries_webhook_fkey FOREIGN KEY (webhook_id) REFERENCES webhooks(id) ON DELETE CASCADE
);
ALTER TABLE webhook_deliveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_deliveries FORCE ROW LEVEL SECURITY;

CREATE TABLE webhook_progress (
  only_row boolean DEFAULT true NOT NULL,
  epoch text NOT NULL,
  done xid8 NOT NULL,
  window_end xid8,
  after_id uuid,
  since timestamp with time zone,
  saved_at timestamp with time zone NOT NULL,
  CONSTRAINT webhook_progress_only CHECK (only_row),
  CONSTRAINT webhook_progress_pkey PRIMARY KEY (only_row)
);
ALTER TABLE webhook_progress ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_progress FORCE ROW LEVEL SECURITY;

CREATE TABLE webhooks (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  url text NOT NULL,
  description text NOT NULL,
  event_types text[],
  category text,
  sandbox_id uuid,
  actor text,
  secret_sealed bytea NOT NULL,
  old_secrets jsonb DEFAULT '[]'::jsonb NOT NULL,
  paused_at timestamp with time zone,
  pause_reason text,
  begins pg_snapshot DEFAULT pg_current_snapshot(),
  created_xact xid8 DEFAULT pg_current_xact_id(),
  created_at timestamp with time zone NOT NULL,
  CONSTRAINT webhooks_org_fkey FOREIGN KEY (org_id) REFERENCES orgs(id),
  CONSTRAINT webhooks_pause CHECK (((paused_at IS NULL) = (pause_reason IS NULL))),
  CONSTRAINT webhooks_pkey PRIMARY KEY (id)
);
ALTER TABLE webhooks ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhooks FORCE ROW LEVEL SECURITY;

CREATE TABLE worker_generations (
  worker_id uuid NOT NULL,
  generation bigint NOT NULL,
  CONSTRAINT worker_generations_pkey PRIMARY KEY (worker_id),
  CONSTRAINT worker_generations_positive CHECK ((generation > 0)),
  CONSTRAINT worker_generations_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers(id)
) WITH (fillfactor=50);
ALTER TABLE worker_generations ENABLE ROW LEVEL SECURITY;
ALTER TABLE worker_generations FORCE ROW LEVEL SECURITY;

CREATE TABLE worker_tokens (
  id uuid NOT NULL,
  name text,
  secret_sha256 bytea NOT NULL,
  created_at timestamp with time zone NOT NULL,
  expires_at timestamp with time zone NOT NULL,
  used_at timestamp with time zone,
  worker_id uuid,
  bounds jsonb,
  CONSTRAINT worker_tokens_pkey PRIMARY KEY (id),
  CONSTRAINT worker_tokens_secret_key UNIQUE (secret_sha256),
  CONSTRAINT worker_tokens_secret_length CHECK ((octet_length(secret_sha256) = 32)),
  CONSTRAINT worker_tokens_used_by_worker CHECK (((used_at IS NULL) = (worker_id IS NULL))),
  CONSTRAINT worker_tokens_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers(id)
);
ALTER TABLE worker_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE worker_tokens FORCE ROW LEVEL SECURITY;

CREATE TABLE workers (
  id uuid NOT NULL,
  name text NOT NULL,
  credential_sha256 bytea NOT NULL,
  vcpus integer DEFAULT 0 NOT NULL,
  memory_mib integer DEFAULT 0 NOT NULL,
  disk_mib bigint DEFAULT 0,
  driver jsonb,
  lease_expires_at timestamp with time zone,
  created_at timestamp with time zone NOT NULL,
  life uuid,
  report_seq bigint DEFAULT 0 NOT NULL,
  storage jsonb,
  draining_since timestamp with time zone,
  drain_deadline_at timestamp with time zone,
  removed_at timestamp with time zone,
  offer text GENERATED ALWAYS AS (md5(((COALESCE((driver)::text, ''::text) || ' '::text) || COALESCE((storage)::text, ''::text)))) STORED NOT NULL,
  bounds jsonb,
  refused_claims text,
  disk jsonb,
  is_disk_short boolean DEFAULT false NOT NULL,
  CONSTRAINT workers_deadline_while_draining CHECK (((drain_deadline_at IS NULL) OR (draining_since IS NOT NULL))),
  CONSTRAINT workers_pkey PRIMARY KEY (id)
);
ALTER TABLE workers ENABLE ROW LEVEL SECURITY;
ALTER TABLE workers FORCE ROW LEVEL SECURITY;

CREATE VIEW org_limits WITH (security_invoker=true) AS
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
    sandyard_limit(p.limits, o.quota_overrides, 'max_public_previews'::text) AS max_public_previews,
    sandyard_limit(p.limits, o.quota_overrides, 'max_webhooks'::text) AS max_webhooks
   FROM (orgs o
     JOIN plans p ON ((p.name = o.plan)));

CREATE INDEX api_keys_page ON public.api_keys USING btree (org_id, id DESC);

CREATE INDEX api_keys_valid ON public.api_keys USING btree (org_id, expires_at) WHERE (revoked_at IS NULL);

CREATE INDEX events_of_actor ON public.events USING btree (org_id, actor_key, id DESC) WHERE (actor_key IS NOT NULL);

CREATE INDEX events_of_sandbox ON public.events USING btree (org_id, sandbox_id, id DESC) WHERE (sandbox_id IS NOT NULL);

CREATE INDEX events_page ON public.events USING btree (org_id, id DESC);

CREATE INDEX events_page_by_type ON public.events USING btree (org_id, event_type, id DESC);

CREATE INDEX events_stream ON public.events USING btree (org_id, xact) WHERE (xact IS NOT NULL);

CREATE INDEX idempotency_expiry ON public.idempotency USING btree (expires_at);

CREATE UNIQUE INDEX intercept_authorities_current ON public.intercept_authorities USING btree (org_id) WHERE (replaced_at IS NULL);

CREATE INDEX intercept_authorities_org ON public.intercept_authorities USING btree (org_id);

CREATE INDEX member_sessions_expiry ON public.member_sessions USING btree (expires_at);

CREATE INDEX member_sessions_of_member ON public.member_sessions USING btree (org_id, user_id);

CREATE INDEX member_sessions_of_user ON public.member_sessions USING btree (user_id);

CREATE INDEX members_page ON public.members USING btree (org_id, id DESC);

CREATE INDEX org_count_deltas_of_org ON public.org_count_deltas USING btree (org_id);

CREATE INDEX previews_of_sandbox ON public.previews USING btree (sandbox_id, port);

CREATE INDEX previews_public ON public.previews USING btree (org_id) WHERE (access = 'public'::text);

CREATE INDEX runs_across_midnight ON public.runs USING btree (org_id, started_at) WHERE ((rolled_up_at IS NOT NULL) AND (((started_at AT TIME ZONE 'UTC'::text))::date <> ((ended_at AT TIME ZONE 'UTC'::text))::date));

CREATE INDEX runs_across_midnight_of_sandbox ON public.runs USING btree (sandbox_id, started_at) WHERE ((rolled_up_at IS NOT NULL) AND (((started_at AT TIME ZONE 'UTC'::text))::date <> ((ended_at AT TIME ZONE 'UTC'::text))::date));

CREATE INDEX runs_active_of_org ON public.runs USING btree (org_id) WHERE (ended_at IS NULL);

CREATE INDEX runs_deadline ON public.runs USING btree (deadline_at) WHERE ((ended_at IS NULL) AND (stop_requested_at IS NULL));

CREATE INDEX runs_new ON public.runs USING btree (opened_at, id) WHERE ((ended_at IS NULL) AND (worker_id IS NULL) AND (waits_since IS NULL));

CREATE INDEX runs_of_sandbox ON public.runs USING btree (sandbox_id, opened_at DESC);

CREATE INDEX runs_of_worker ON public.runs USING btree (worker_id) INCLUDE (vcpus, memory_mib, org_id) WHERE ((ended_at IS NULL) AND (worker_id IS NOT NULL));

CREATE UNIQUE INDEX runs_one_open ON public.runs USING btree (sandbox_id) WHERE (ended_at IS NULL);

CREATE INDEX runs_publishing ON public.runs USING btree (worker_id) WHERE ((ended_at IS NULL) AND (ports IS NOT NULL));

CREATE INDEX runs_rolled_up ON public.runs USING btree (org_id, ended_at) INCLUDE (started_at, vcpus, memory_mib, disk_mib) WHERE (rolled_up_at IS NOT NULL);

CREATE INDEX runs_rolled_up_of_sandbox ON public.runs USING btree (sandbox_id, ended_at) INCLUDE (org_id, started_at, vcpus, memory_mib, disk_mib) WHERE (rolled_up_at IS NOT NULL);

CREATE INDEX runs_stopping ON public.runs USING btree (worker_id) INCLUDE (sandbox_id, org_id) WHERE ((ended_at IS NULL) AND (worker_id IS NOT NULL) AND (stop_requested_at IS NOT NULL));

CREATE INDEX runs_to_roll_up ON public.runs USING btree (org_id, id) WHERE ((rolled_up_at IS NULL) AND (started_at IS NOT NULL) AND (ended_at IS NOT NULL));

CREATE INDEX runs_waiting ON public.runs USING btree (opened_at, id) INCLUDE (vcpus, memory_mib, disk_mib, sandbox_id, org_id) WHERE ((ended_at IS NULL) AND (worker_id IS NULL) AND (waits_since IS NOT NULL));

CREATE INDEX sandbox_labels_restart ON public.sandbox_labels USING btree (sandbox_id) WHERE (key = 'sandyard.restart'::text);

CREATE INDEX sandbox_labels_sandbox ON public.sandbox_labels USING btree (sandbox_id);

CREATE INDEX sandbox_labels_snapshot ON public.sandbox_labels USING btree (sandbox_id) WHERE (key = 'sandyard.snapshot'::text);

CREATE INDEX sandbox_volumes_of_volume ON public.sandbox_volumes USING btree (volume_id);

CREATE INDEX sandboxes_disks ON public.sandboxes USING btree (home_worker_id) INCLUDE (disk_size_mib, org_id) WHERE ((home_worker_id IS NOT NULL) AND (visible_until IS NULL));

CREATE INDEX sandboxes_gone ON public.sandboxes USING btree (visible_until) WHERE (visible_until IS NOT NULL);

CREATE INDEX sandboxes_leaving_name ON public.sandboxes USING btree (org_id, name, visible_until) WHERE (visible_until IS NOT NULL);

CREATE UNIQUE INDEX sandboxes_name_key ON public.sandboxes USING btree (org_id, name) WHERE (visible_until IS NULL);

CREATE INDEX sandboxes_of_home ON public.sandboxes USING btree (home_worker_id) WHERE (home_worker_id IS NOT NULL);

CREATE INDEX sandboxes_of_snapshot ON public.sandboxes USING btree (snapshot_id) WHERE (snapshot_id IS NOT NULL);

CREATE INDEX sandboxes_page ON public.sandboxes USING btree (org_id, id DESC) WHERE (visible_until IS NULL);

CREATE INDEX sandboxes_restart ON public.sandboxes USING btree (restart_at) WHERE ((restart_at IS NOT NULL) AND (visible_until IS NULL));

CREATE UNIQUE INDEX sandboxes_slug_key ON public.sandboxes USING btree (slug) WHERE (visible_until IS NULL);

CREATE INDEX sign_in_links_expiry ON public.sign_in_links USING btree (expires_at);

CREATE UNIQUE INDEX snapshots_name_key ON public.snapshots USING btree (org_id, name) WHERE ((deleted_at IS NULL) AND (status <> 'failed'::text) AND (NOT replaces));

CREATE INDEX snapshots_of_worker ON public.snapshots USING btree (worker_id);

CREATE INDEX snapshots_page ON public.snapshots USING btree (org_id, id) WHERE ((deleted_at IS NULL) AND (status = 'succeeded'::text) AND (name IS NOT NULL));

CREATE INDEX snapshots_scheduled ON public.snapshots USING btree (sandbox_id, id) WHERE is_scheduled;

CREATE INDEX snapshots_to_accrue ON public.snapshots USING btree (accrued_until) WHERE ((deleted_at IS NULL) AND (accrued_until IS NOT NULL));

CREATE INDEX snapshots_to_discard ON public.snapshots USING btree (id) WHERE ((deleted_at IS NOT NULL) OR (status = 'failed'::text) OR (name IS NULL));

CREATE INDEX snapshots_to_take ON public.snapshots USING btree (id) WHERE (status = ANY (ARRAY['queued'::text, 'in_progress'::text]));

CREATE INDEX ssh_keys_page ON public.ssh_keys USING btree (org_id, id);

CREATE INDEX storage_accruals_range ON public.storage_accruals USING btree (org_id, from_at);

CREATE INDEX stream_tickets_of_worker ON public.stream_tickets USING btree (worker_id);

CREATE INDEX user_identities_of_user ON public.user_identities USING btree (user_id);

CREATE INDEX volumes_deleting ON public.volumes USING btree (updated_at) WHERE (status = 'deleting'::text);

CREATE UNIQUE INDEX volumes_name_key ON public.volumes USING btree (org_id, name) WHERE (kind = 'managed'::text);

CREATE INDEX volumes_of_home ON public.volumes USING btree (home_worker_id);

CREATE UNIQUE INDEX volumes_one_host ON public.volumes USING btree (org_id) WHERE (kind = 'host'::text);

CREATE INDEX webhook_deliveries_blocking ON public.webhook_deliveries USING btree (webhook_id, lane) WHERE ((status = 'waiting'::text) AND (next_attempt_at IS NOT NULL));

CREATE INDEX webhook_deliveries_waiting ON public.webhook_deliveries USING btree (webhook_id, place, id) WHERE (status = 'waiting'::text);

CREATE INDEX webhooks_of_org ON public.webhooks USING btree (org_id, id);

CREATE UNIQUE INDEX workers_credential_key ON public.workers USING btree (credential_sha256) WHERE (removed_at IS NULL);

CREATE INDEX workers_draining ON public.workers USING btree (drain_deadline_at) WHERE (drain_deadline_at IS NOT NULL);

CREATE UNIQUE INDEX workers_name_key ON public.workers USING btree (name) WHERE (removed_at IS NULL);

CREATE INDEX workers_removed_credential ON public.workers USING btree (credential_sha256) WHERE (removed_at IS NOT NULL);

CREATE POLICY tenant ON api_keys AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON events AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON idempotency AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON intercept_authorities AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON leads AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY system ON machine_clocks AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON member_sessions AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON members AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON org_count_deltas AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON org_counts AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON orgs AS PERMISSIVE FOR ALL TO public USING (((id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY readable ON plans AS PERMISSIVE FOR SELECT TO public USING (true);

CREATE POLICY system ON plans AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON previews AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON pruned_sandboxes AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON registry_credentials AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON replicas AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY readable ON retention_horizons AS PERMISSIVE FOR SELECT TO public USING (true);

CREATE POLICY system ON retention_horizons AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON runs AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON sandbox_label_pairs AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON sandbox_labels AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON sandbox_volumes AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON sandboxes AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON sealing_key AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON sign_in_links AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON snapshots AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON ssh_host_key AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON ssh_keys AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON storage_accruals AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON storage_org_days AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON stream_tickets AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON usage_days AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON usage_org_days AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON user_identities AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY of_members ON users AS PERMISSIVE FOR SELECT TO public USING ((EXISTS ( SELECT
   FROM members m
  WHERE ((m.user_id = users.id) AND (m.org_id = (NULLIF(NULLIF(current_setting('sandyard.org'::text, true), '*'::text), ''::text))::uuid)))));

CREATE POLICY system ON users AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON volumes AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY tenant ON webhook_deliveries AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON webhook_progress AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY tenant ON webhooks AS PERMISSIVE FOR ALL TO public USING (((org_id = ( SELECT sandyard_org() AS sandyard_org)) OR ( SELECT sandyard_is_system() AS sandyard_is_system)));

CREATE POLICY system ON worker_generations AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY system ON worker_tokens AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE POLICY system ON workers AS PERMISSIVE FOR ALL TO public USING (sandyard_is_system());

CREATE TRIGGER events_append_only BEFORE DELETE OR UPDATE ON public.events FOR EACH STATEMENT EXECUTE FUNCTION sandyard_refuse_change();

CREATE TRIGGER orgs_raise_generations AFTER UPDATE ON public.orgs REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_org_limits_changed();

CREATE TRIGGER plans_raise_generations AFTER UPDATE ON public.plans REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_plan_limits_changed();

CREATE TRIGGER runs_added AFTER INSERT ON public.runs REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_added();

CREATE TRIGGER runs_raise_generations AFTER UPDATE ON public.runs REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_changed();

CREATE TRIGGER runs_removed AFTER DELETE ON public.runs REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_removed();

CREATE TRIGGER sandbox_labels_added AFTER INSERT ON public.sandbox_labels REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION sandyard_add_label_pairs();

CREATE TRIGGER sandbox_labels_dropped AFTER DELETE ON public.sandbox_labels REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION sandyard_drop_label_pairs();

CREATE TRIGGER sandboxes_added AFTER INSERT ON public.sandboxes REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_added();

CREATE TRIGGER sandboxes_raise_generations AFTER UPDATE ON public.sandboxes REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_changed();

CREATE TRIGGER sandboxes_removed AFTER DELETE ON public.sandboxes REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_removed();

CREATE TRIGGER sandboxes_renamed AFTER UPDATE OF name ON public.sandboxes FOR EACH ROW WHEN (((old.name <> new.name) AND (new.home_worker_id IS NOT NULL))) EXECUTE FUNCTION sandyard_sandbox_renamed();

CREATE TRIGGER sandboxes_secrets_changed AFTER UPDATE OF secrets_version ON public.sandboxes FOR EACH ROW WHEN (((old.secrets_version <> new.secrets_version) AND (new.home_worker_id IS NOT NULL))) EXECUTE FUNCTION sandyard_secrets_changed();

CREATE TRIGGER volumes_raise_generations AFTER UPDATE ON public.volumes REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_volumes_changed();
