-- Snapshots by the label sandyard.snapshot: see src/domain/sandboxes/snapshot-schedule.ts. is_scheduled: made by the label, and deleted by it.
-- accrued_until: the time up to which storage_accruals has what the snapshot takes. Null: it is not complete, or has no name.
ALTER TABLE snapshots ADD COLUMN is_scheduled boolean NOT NULL DEFAULT false;
ALTER TABLE snapshots ADD COLUMN accrued_until timestamptz;
UPDATE snapshots SET accrued_until = now() WHERE status = 'succeeded' AND name IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX snapshots_scheduled ON snapshots (sandbox_id, id) WHERE is_scheduled;
CREATE INDEX snapshots_to_accrue ON snapshots (accrued_until) WHERE deleted_at IS NULL AND accrued_until IS NOT NULL;
CREATE INDEX sandbox_labels_snapshot ON sandbox_labels (sandbox_id) WHERE key = 'sandyard.snapshot';
