-- The isolation level of the latest run, as its worker reported when the run started to run: see src/domain/isolation.ts. Null: no run
-- has run since the last start was asked for, its worker knows no level, or it started before this migration.
ALTER TABLE sandboxes ADD COLUMN isolation text CONSTRAINT sandboxes_isolation CHECK (isolation IN ('container', 'gvisor', 'microvm'));
