-- Rows that are deleted after a time, and what stays of them. See docs/decisions/0037-retention.md.

-- How far rows are deleted: `runs` that ended before the instant, and what each sandbox and volume used (`usage`) before it. An
-- instant never goes back, even if an operator keeps rows for longer from then on. A reader that reads the rows first and this
-- table afterwards knows whether it saw all rows.
CREATE TABLE retention_horizons (
  kind text NOT NULL,
  before timestamptz NOT NULL,
  CONSTRAINT retention_horizons_pkey PRIMARY KEY (kind),
  CONSTRAINT retention_horizons_kind_known CHECK (kind IN ('runs', 'usage'))
);
ALTER TABLE retention_horizons ENABLE ROW LEVEL SECURITY;
ALTER TABLE retention_horizons FORCE ROW LEVEL SECURITY;
CREATE POLICY readable ON retention_horizons FOR SELECT USING (true);
CREATE POLICY system ON retention_horizons USING (sandyard_is_system());

-- What stays of a sandbox whose row is deleted: its names for usage reports, and its home, whose worker may still store its disk.
CREATE TABLE pruned_sandboxes (
  id uuid NOT NULL,
  org_id uuid NOT NULL,
  name text NOT NULL,
  slug text NOT NULL,
  home_worker_id uuid,
  pruned_at timestamptz NOT NULL,
  CONSTRAINT pruned_sandboxes_pkey PRIMARY KEY (id),
  CONSTRAINT pruned_sandboxes_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
ALTER TABLE pruned_sandboxes ENABLE ROW LEVEL SECURITY;
ALTER TABLE pruned_sandboxes FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON pruned_sandboxes USING (sandyard_sees(org_id));

-- How much all volumes of an organization held on a day, as far as the intervals of the day are deleted.
CREATE TABLE storage_org_days (
  org_id uuid NOT NULL,
  day date NOT NULL,
  byte_ms numeric NOT NULL,
  CONSTRAINT storage_org_days_pkey PRIMARY KEY (org_id, day),
  CONSTRAINT storage_org_days_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id)
);
ALTER TABLE storage_org_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE storage_org_days FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON storage_org_days USING (sandyard_sees(org_id));

-- Deleted sandboxes in the order in which their rows are deleted. A create writes nothing to this index.
CREATE INDEX sandboxes_gone ON sandboxes (visible_until) WHERE visible_until IS NOT NULL;

-- Runs have a time of their own: a bill needs them for longer than the specification of their sandbox.
ALTER TABLE runs DROP CONSTRAINT runs_sandbox_fkey;

-- Audit events stay append-only. Only the function below deletes them, which runs as the owner of the table: a role that doesn't
-- own the table can't delete an event by any statement of its own.
CREATE OR REPLACE FUNCTION sandyard_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('sandyard.prunes_events', true) = 'on'
     AND pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'audit events are append-only';
END $$;

-- Deletes events from before an instant, at most `at_most`, in the order of their ids and after the id `after`. Returns how many it
-- deleted, and the last one. Keeps the events of a month that say that included hours are used up: they are read until it ends.
CREATE FUNCTION sandyard_prune_events(before timestamptz, after uuid, at_most integer, OUT count integer, OUT last uuid)
  LANGUAGE plpgsql SECURITY DEFINER AS $$
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
END $$;

-- With a fixed search path, a temporary table of the caller can't take the place of a table of the function.
DO $$ BEGIN
  EXECUTE format('ALTER FUNCTION sandyard_prune_events(timestamptz, uuid, integer) SET search_path = %I, pg_temp', current_schema());
END $$;
