-- A create may place its first run in its own transaction. The worker must learn about a run that is inserted with a worker, as it does about
-- one that gets its worker later (0009). Processes of the previous release insert no such run.
CREATE OR REPLACE FUNCTION sandyard_runs_added() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE of_workers uuid[];
BEGIN
  SELECT array_agg(DISTINCT worker_id) INTO of_workers FROM new_rows WHERE worker_id IS NOT NULL;
  IF of_workers IS NOT NULL THEN PERFORM sandyard_raise_generations(of_workers); END IF;
  INSERT INTO org_count_deltas (org_id, sandboxes, ephemeral_runs, persistent_runs)
  SELECT org_id, 0, count(*) FILTER (WHERE is_ephemeral), count(*) FILTER (WHERE NOT is_ephemeral)
  FROM new_rows WHERE ended_at IS NULL AND stop_requested_at IS NULL GROUP BY org_id;
  RETURN NULL;
END $$;
