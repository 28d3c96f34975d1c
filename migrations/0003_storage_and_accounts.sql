-- Plans as data. A limit that is absent or null is unlimited; `prices` null means unpriced: its pools are walls.
CREATE TABLE plans (
  name text NOT NULL,
  limits jsonb NOT NULL,
  prices jsonb,
  updated_at timestamptz NOT NULL,
  CONSTRAINT plans_pkey PRIMARY KEY (name),
  CONSTRAINT plans_name_shape CHECK (name ~ '^[a-z0-9]+(-[a-z0-9]+)*$' AND length(name) <= 63),
  CONSTRAINT plans_limits_object CHECK (jsonb_typeof(limits) = 'object'),
  CONSTRAINT plans_prices_object CHECK (prices IS NULL OR jsonb_typeof(prices) = 'object')
);
INSERT INTO plans (name, limits, prices, updated_at) VALUES ('unlimited', '{}', NULL, now());

ALTER TABLE orgs ADD COLUMN plan text NOT NULL DEFAULT 'unlimited';
ALTER TABLE orgs ADD COLUMN quota_overrides jsonb NOT NULL DEFAULT '{}';
ALTER TABLE orgs ADD CONSTRAINT orgs_plan_fkey FOREIGN KEY (plan) REFERENCES plans (name);
ALTER TABLE orgs ADD CONSTRAINT orgs_overrides_object CHECK (jsonb_typeof(quota_overrides) = 'object');

-- One limit of an organization: its override when it has one (null: unlimited), else its plan's.
CREATE FUNCTION sandyard_limit(plan_limits jsonb, overrides jsonb, name text) RETURNS integer
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  AS $$ SELECT (CASE WHEN overrides ? name THEN overrides ->> name ELSE plan_limits ->> name END)::integer $$;

-- The limits in force, a row an organization; row-level security of orgs holds for who reads it.
CREATE VIEW org_limits WITH (security_invoker = true) AS
  SELECT o.id AS org_id, o.plan, p.prices, o.suspended_at IS NOT NULL AS is_suspended, p.prices IS NULL AS hard_cap,
    sandyard_limit(p.limits, o.quota_overrides, 'max_sandboxes') AS max_sandboxes,
    sandyard_limit(p.limits, o.quota_overrides, 'max_concurrent_ephemeral_running') AS max_concurrent_ephemeral_running,
    sandyard_limit(p.limits, o.quota_overrides, 'max_concurrent_persistent_running') AS max_concurrent_persistent_running,
    sandyard_limit(p.limits, o.quota_overrides, 'max_vcpus_per_sandbox') AS max_vcpus_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_memory_mib_per_sandbox') AS max_memory_mib_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_disk_size_mib_per_sandbox') AS max_disk_size_mib_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_uptime_minutes_per_sandbox') AS max_uptime_minutes_per_sandbox,
    sandyard_limit(p.limits, o.quota_overrides, 'max_total_storage_gib') AS max_total_storage_gib,
    sandyard_limit(p.limits, o.quota_overrides, 'included_vcpu_hours') AS included_vcpu_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_memory_gib_hours') AS included_memory_gib_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_disk_gib_hours') AS included_disk_gib_hours,
    sandyard_limit(p.limits, o.quota_overrides, 'included_storage_gib') AS included_storage_gib
  FROM orgs o JOIN plans p ON p.name = o.plan;

ALTER TABLE api_keys ADD COLUMN scopes text[] NOT NULL DEFAULT '{read,write,admin}';
ALTER TABLE api_keys ALTER COLUMN scopes DROP DEFAULT;
ALTER TABLE api_keys DROP COLUMN role;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_scopes_known
  CHECK (scopes <@ '{read,write,admin}'::text[] AND cardinality(scopes) BETWEEN 1 AND 3);
CREATE INDEX api_keys_page ON api_keys (org_id, id DESC);

ALTER TABLE users ADD COLUMN avatar_url text;
CREATE INDEX members_page ON members (org_id, id DESC);
-- An organization sees the people who are its members. The setting is read as an id, which the index of members serves.
CREATE POLICY of_members ON users FOR SELECT USING (EXISTS (
  SELECT FROM members m WHERE m.user_id = users.id
    AND m.org_id = nullif(nullif(current_setting('sandyard.org', true), '*'), '')::uuid));

-- home_worker_id: the machine that its files lie on, from the first use on; is_shared: they lie where every worker
-- that says so finds them. used_bytes is the worker's latest word; what it held is written down until accrued_until.
ALTER TABLE volumes ADD COLUMN capacity_gib integer;
ALTER TABLE volumes ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';
ALTER TABLE volumes ADD COLUMN home_worker_id uuid;
ALTER TABLE volumes ADD COLUMN is_shared boolean NOT NULL DEFAULT false;
ALTER TABLE volumes ADD COLUMN used_bytes bigint;
ALTER TABLE volumes ADD COLUMN accrued_until timestamptz;
ALTER TABLE volumes ADD COLUMN emptied_at timestamptz;
ALTER TABLE volumes ADD CONSTRAINT volumes_home_fkey FOREIGN KEY (home_worker_id) REFERENCES workers (id);
ALTER TABLE volumes ADD CONSTRAINT volumes_one_home CHECK (home_worker_id IS NULL OR NOT is_shared);
ALTER TABLE volumes ADD CONSTRAINT volumes_capacity_positive CHECK (capacity_gib >= 1);
ALTER TABLE volumes ADD CONSTRAINT volumes_used_positive CHECK (used_bytes >= 0);
ALTER TABLE volumes ADD CONSTRAINT volumes_host_stays CHECK (kind <> 'host' OR (status = 'active' AND capacity_gib IS NULL));
ALTER TABLE volumes ADD CONSTRAINT volumes_emptied_last CHECK (emptied_at IS NULL OR status = 'deleting');
CREATE INDEX volumes_of_home ON volumes (home_worker_id);
CREATE INDEX volumes_deleting ON volumes (updated_at) WHERE status = 'deleting';

ALTER TABLE workers ADD COLUMN storage jsonb;

-- Which volumes a sandbox mounts: what ties it to a worker, and what keeps a volume from being deleted.
CREATE TABLE sandbox_volumes (
  org_id uuid NOT NULL,
  sandbox_id uuid NOT NULL,
  volume_id uuid NOT NULL,
  CONSTRAINT sandbox_volumes_pkey PRIMARY KEY (sandbox_id, volume_id),
  CONSTRAINT sandbox_volumes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT sandbox_volumes_sandbox_fkey FOREIGN KEY (sandbox_id) REFERENCES sandboxes (id)
);
CREATE INDEX sandbox_volumes_of_volume ON sandbox_volumes (volume_id);

-- What a volume held, and when: no interval crosses midnight (UTC). Kept when the volume is gone, so without a foreign key.
CREATE TABLE storage_accruals (
  org_id uuid NOT NULL,
  volume_id uuid NOT NULL,
  from_at timestamptz NOT NULL,
  to_at timestamptz NOT NULL,
  used_bytes bigint NOT NULL,
  CONSTRAINT storage_accruals_pkey PRIMARY KEY (org_id, volume_id, from_at),
  CONSTRAINT storage_accruals_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT storage_accruals_order CHECK (to_at > from_at),
  CONSTRAINT storage_accruals_used_positive CHECK (used_bytes >= 0)
);
CREATE INDEX storage_accruals_range ON storage_accruals (org_id, from_at);

-- A run carries what is metered of it, so that the ledger needs no sandbox. rolled_up_at: its days are in usage_days.
ALTER TABLE runs ADD COLUMN is_ephemeral boolean NOT NULL DEFAULT false;
ALTER TABLE runs ADD COLUMN disk_mib integer NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN rolled_up_at timestamptz;
ALTER TABLE runs ADD CONSTRAINT runs_rolled_up_last
  CHECK (rolled_up_at IS NULL OR (ended_at IS NOT NULL AND started_at IS NOT NULL));
CREATE INDEX runs_active_of_org ON runs (org_id) WHERE ended_at IS NULL;
CREATE INDEX runs_to_roll_up ON runs (org_id, id)
  WHERE rolled_up_at IS NULL AND started_at IS NOT NULL AND ended_at IS NOT NULL;
CREATE INDEX runs_rolled_up ON runs (org_id, ended_at) WHERE rolled_up_at IS NOT NULL;
CREATE INDEX runs_across_midnight ON runs (org_id, started_at)
  WHERE rolled_up_at IS NOT NULL AND (started_at AT TIME ZONE 'UTC')::date <> (ended_at AT TIME ZONE 'UTC')::date;

-- What runs that ended took, a row for each sandbox and UTC day, in milliseconds times units: whole numbers, so that sums
-- are exact. all_day_*: the units of those that ran from its first to its last instant, which say what any part of it took.
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
  CONSTRAINT usage_days_pkey PRIMARY KEY (org_id, day, sandbox_id),
  CONSTRAINT usage_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
CREATE TABLE usage_org_days (
  org_id uuid NOT NULL,
  day date NOT NULL,
  vcpu_ms numeric NOT NULL,
  memory_mib_ms numeric NOT NULL,
  disk_mib_ms numeric NOT NULL,
  all_day_vcpus bigint NOT NULL,
  all_day_memory_mib bigint NOT NULL,
  all_day_disk_mib bigint NOT NULL,
  CONSTRAINT usage_org_days_pkey PRIMARY KEY (org_id, day),
  CONSTRAINT usage_org_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);

-- An instant in whole milliseconds since 1970: what metering counts in. STABLE, as what it calls is, so that it is inlined.
CREATE FUNCTION sandyard_ms(at timestamptz) RETURNS bigint
  LANGUAGE sql STABLE PARALLEL SAFE
  AS $$ SELECT (date_part('epoch', at) * 1000)::bigint $$;

ALTER TABLE plans ENABLE ROW LEVEL SECURITY;
ALTER TABLE plans FORCE ROW LEVEL SECURITY;
CREATE POLICY readable ON plans FOR SELECT USING (true);
CREATE POLICY system ON plans USING (sandyard_is_system());
ALTER TABLE sandbox_volumes ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_volumes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sandbox_volumes USING (sandyard_sees(org_id));
ALTER TABLE storage_accruals ENABLE ROW LEVEL SECURITY;
ALTER TABLE storage_accruals FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON storage_accruals USING (sandyard_sees(org_id));
ALTER TABLE usage_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_days FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON usage_days USING (sandyard_sees(org_id));
ALTER TABLE usage_org_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_org_days FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON usage_org_days USING (sandyard_sees(org_id));

-- The open run of a sandbox. Volatile, so that it looks with a snapshot of its own: who locks a sandbox's row and asks
-- for its run in the same statement gets the run as it is once the lock is had, and not as it was when the wait began.
CREATE FUNCTION sandyard_open_run(of_sandbox uuid) RETURNS TABLE (id uuid, worker_id uuid, started_at timestamptz)
  LANGUAGE sql VOLATILE
  AS $$ SELECT r.id, r.worker_id, r.started_at FROM runs r WHERE r.sandbox_id = of_sandbox AND r.ended_at IS NULL $$;

-- Runs of before carry what is counted and metered of them as well; a disk of the worker's own size was told to nobody.
UPDATE runs r SET is_ephemeral = s.ephemeral, disk_mib = coalesce((s.spec #>> '{resources,disk_size_mib}')::integer, 0)
  FROM sandboxes s WHERE s.id = r.sandbox_id;
