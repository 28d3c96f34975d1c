-- Webhooks: URLs that get the events of an organization. secret_sealed signs; old_secrets sign too until they expire.
-- begins: the transactions that had ended when the webhook was made. Their events are no part of it, and neither is that of its own creation.
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
  old_secrets jsonb NOT NULL DEFAULT '[]',
  paused_at timestamptz,
  pause_reason text,
  begins pg_snapshot DEFAULT pg_current_snapshot(),
  created_xact xid8 DEFAULT pg_current_xact_id(),
  created_at timestamptz NOT NULL,
  CONSTRAINT webhooks_pkey PRIMARY KEY (id),
  CONSTRAINT webhooks_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT webhooks_pause CHECK ((paused_at IS NULL) = (pause_reason IS NULL))
);
CREATE INDEX webhooks_of_org ON webhooks (org_id, id);
ALTER TABLE webhooks ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhooks FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON webhooks USING (sandyard_sees(org_id));

-- An event for a webhook. id: the event's. lane: what is sent in order, the sandbox, or the organization for events without one; a delivery
-- that is sent again has a lane of its own. Within a lane, the order is that of (place, id).
-- next_attempt_at: an attempt failed, and the lane waits until then.
CREATE TABLE webhook_deliveries (
  webhook_id uuid NOT NULL,
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  lane uuid NOT NULL,
  place bigint NOT NULL,
  status text NOT NULL DEFAULT 'waiting',
  attempts integer NOT NULL DEFAULT 0,
  tried_since timestamptz,
  last_attempt_at timestamptz,
  next_attempt_at timestamptz,
  duration_ms integer,
  reply_status integer,
  reply_body text,
  error text,
  created_at timestamptz NOT NULL,
  CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (webhook_id, id),
  CONSTRAINT webhook_deliveries_webhook_fkey FOREIGN KEY (webhook_id) REFERENCES webhooks (id) ON DELETE CASCADE,
  CONSTRAINT webhook_deliveries_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT webhook_deliveries_status CHECK (status IN ('waiting', 'delivered', 'failed'))
);
CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (webhook_id, place, id) WHERE status = 'waiting';
CREATE INDEX webhook_deliveries_blocking ON webhook_deliveries (webhook_id, lane) WHERE status = 'waiting' AND next_attempt_at IS NOT NULL;
ALTER TABLE webhook_deliveries ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_deliveries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON webhook_deliveries USING (sandyard_sees(org_id));

-- How far events have become deliveries: all of transactions before done; of those from done to before window_end, those up to the event
-- after_id. epoch: what counts the transactions. since: after a restore, events from then on may not have become deliveries.
CREATE TABLE webhook_progress (
  only_row boolean NOT NULL DEFAULT true,
  epoch text NOT NULL,
  done xid8 NOT NULL,
  window_end xid8,
  after_id uuid,
  since timestamptz,
  saved_at timestamptz NOT NULL,
  CONSTRAINT webhook_progress_pkey PRIMARY KEY (only_row),
  CONSTRAINT webhook_progress_only CHECK (only_row)
);
ALTER TABLE webhook_progress ENABLE ROW LEVEL SECURITY;
ALTER TABLE webhook_progress FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON webhook_progress USING (sandyard_is_system());

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
    sandyard_limit(p.limits, o.quota_overrides, 'max_public_previews'::text) AS max_public_previews,
    sandyard_limit(p.limits, o.quota_overrides, 'max_webhooks'::text) AS max_webhooks
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
    ('webhook_deliveries', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('webhook_progress', '{SELECT,INSERT,UPDATE}'),
    ('webhooks', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('worker_generations', '{SELECT,INSERT,UPDATE}'),
    ('worker_tokens', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('workers', '{SELECT,INSERT,UPDATE}') $$;
