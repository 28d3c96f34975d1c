-- The bytes of `spec`, so that an answer to a worker has no more specifications than fit (src/store/sandboxes/runs.ts). Null: a process of an earlier
-- version wrote the row. PostgreSQL would read and unpack a large specification to count them.
ALTER TABLE sandboxes ADD COLUMN spec_bytes integer;
