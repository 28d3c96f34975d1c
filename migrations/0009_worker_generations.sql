-- The generation of each worker: a number that rises whenever something changes that the worker must hear. A worker that
-- knows the current one, and has nothing new to say, needs no answer worked out: its lease is prolonged and that is all.
--
-- Triggers raise it in the transaction that makes the change, whoever makes it, so that no writer can forget to. They read
-- whole statements, never single rows: the rows of this table are locked in the order of the workers' ids, and last of all
-- that a transaction locks. A raise too many costs one answer; docs/decisions/0022 says what an answer depends on.
CREATE TABLE worker_generations (
  worker_id uuid NOT NULL,
  generation bigint NOT NULL,
  CONSTRAINT worker_generations_pkey PRIMARY KEY (worker_id),
  CONSTRAINT worker_generations_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers (id),
  CONSTRAINT worker_generations_positive CHECK (generation > 0)
) WITH (fillfactor = 50);
ALTER TABLE worker_generations ENABLE ROW LEVEL SECURITY;
ALTER TABLE worker_generations FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON worker_generations USING (sandyard_is_system());

-- Who changes a volume sees one organization; the generations belong to none, so this sees all for a moment.
CREATE FUNCTION sandyard_raise_generations(of_workers uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE seen_org text := current_setting('sandyard.org', true);
BEGIN
  PERFORM set_config('sandyard.org', '*', true);
  INSERT INTO worker_generations AS g (worker_id, generation)
  SELECT DISTINCT w.id, 1 FROM unnest(of_workers) AS w(id) ORDER BY w.id
  ON CONFLICT (worker_id) DO UPDATE SET generation = g.generation + 1;
  PERFORM set_config('sandyard.org', seen_org, true);
END $$;

-- What a statement left as it was appears twice among the old and the new rows, what it changed once.
CREATE FUNCTION sandyard_runs_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(worker_id) INTO of_workers FROM (
    SELECT worker_id FROM (
      SELECT id, worker_id, stop_requested_at IS NULL AS goes_on, ended_at IS NULL AS is_open FROM old_rows
      UNION ALL
      SELECT id, worker_id, stop_requested_at IS NULL, ended_at IS NULL FROM new_rows) r
    WHERE worker_id IS NOT NULL GROUP BY id, worker_id, goes_on, is_open HAVING count(*) = 1) c;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  RETURN NULL;
END $$;

-- Only a sandbox that is gone from its clients changes what its worker must hear, and only while it has no run.
CREATE FUNCTION sandyard_sandboxes_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(home_worker_id) INTO of_workers FROM (
    SELECT home_worker_id FROM (
      SELECT id, home_worker_id FROM old_rows WHERE visible_until IS NOT NULL
      UNION ALL
      SELECT id, home_worker_id FROM new_rows WHERE visible_until IS NOT NULL) s
    WHERE home_worker_id IS NOT NULL GROUP BY id, home_worker_id HAVING count(*) = 1) c;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION sandyard_volumes_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;

-- Limits change rarely: every worker that holds a volume of such an organization is raised, whichever limit it was.
CREATE FUNCTION sandyard_org_limits_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY(
    SELECT v.home_worker_id FROM new_rows o JOIN volumes v ON v.org_id = o.id WHERE v.home_worker_id IS NOT NULL));
  RETURN NULL;
END $$;

CREATE FUNCTION sandyard_plan_limits_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY(
    SELECT v.home_worker_id FROM new_rows p JOIN orgs o ON o.plan = p.name JOIN volumes v ON v.org_id = o.id
    WHERE v.home_worker_id IS NOT NULL));
  RETURN NULL;
END $$;

CREATE TRIGGER runs_raise_generations AFTER UPDATE ON runs
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_runs_changed();
CREATE TRIGGER sandboxes_raise_generations AFTER UPDATE ON sandboxes
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_sandboxes_changed();
CREATE TRIGGER volumes_raise_generations AFTER UPDATE ON volumes
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_volumes_changed();
CREATE TRIGGER orgs_raise_generations AFTER UPDATE ON orgs
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_org_limits_changed();
CREATE TRIGGER plans_raise_generations AFTER UPDATE ON plans
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION sandyard_plan_limits_changed();
