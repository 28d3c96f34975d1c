-- Restarts by the label sandyard.restart: see src/domain/sandboxes/restart.ts. restart_at: when the sandbox, whose run has ended, is
-- started again. restart_count: how many restarts in a row led to its latest run.
ALTER TABLE sandboxes ADD COLUMN restart_at timestamptz;
ALTER TABLE sandboxes ADD COLUMN restart_count integer NOT NULL DEFAULT 0
  CONSTRAINT sandboxes_restart_count_check CHECK (restart_count >= 0);
ALTER TABLE sandboxes ADD CONSTRAINT sandboxes_restart_after_end CHECK (restart_at IS NULL OR status IN ('stopped', 'failed'));
CREATE INDEX sandboxes_restart ON sandboxes (restart_at) WHERE restart_at IS NOT NULL;
CREATE INDEX sandbox_labels_restart ON sandbox_labels (sandbox_id) WHERE key = 'sandyard.restart';
