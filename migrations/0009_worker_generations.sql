-- The generation of each worker: a number that rises whenever something changes that the worker must know. If a worker
-- knows its current generation and reports no change, the control plane only extends its lease and computes no answer.
--
-- Triggers raise the generation in the transaction of the change. Therefore no code that writes can forget to raise it.
-- The triggers run once per statement, not per row. A transaction locks the rows of this table in the order of the
-- workers' ids, and after all other rows. A needless raise costs one answer. docs/decisions/0022 lists the data on
-- which an answer depends.
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

-- A transaction that changes a volume sees only one organization. Generations belong to no organization, so this
-- function briefly sees all organizations.
CREATE FUNCTION sandyard_raise_generations(of_workers uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE seen_org text := current_setting('sandyard.org', true);
BEGIN
  PERFORM set_config('sandyard.org', '*', true);
  INSERT INTO worker_generations AS g (worker_id, generation)
  SELECT DISTINCT w.id, 1 FROM unnest(of_workers) AS w(id) ORDER BY w.id
  ON CONFLICT (worker_id) DO UPDATE SET generation = g.generation + 1;
  PERFORM set_config('sandyard.org', seen_org, true);
END $$;

-- An unchanged row appears twice among the old and new rows of a statement. Each version of a changed row appears once.
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

-- A sandbox changes what its worker must know only when it is deleted for its clients, and only while it has no open
-- run.
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

-- Limits change rarely. Therefore a change of any limit raises every worker that stores a volume of that organization.
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
