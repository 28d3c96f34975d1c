-- What a join token allows its worker to claim: a WorkerBounds object (src/domain/workers/worker-bounds.ts). The worker keeps a copy.
-- Null: no bounds, as for the local worker, and for tokens and workers from before this migration.
ALTER TABLE worker_tokens ADD COLUMN bounds jsonb;
ALTER TABLE workers ADD COLUMN bounds jsonb;
-- What the worker's last report claimed beyond its bounds, for operators. Null: nothing.
ALTER TABLE workers ADD COLUMN refused_claims text;
