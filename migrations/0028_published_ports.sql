-- The ports that a run publishes on the machine of its worker, as in the specification. Null: none, or not placed.
ALTER TABLE runs ADD COLUMN ports jsonb;

CREATE INDEX runs_publishing ON runs (worker_id) WHERE ended_at IS NULL AND ports IS NOT NULL;
