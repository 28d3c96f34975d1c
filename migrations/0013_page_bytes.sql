-- The bytes of spec_projection, so that a page of a list ends before it becomes too large without reading the specifications beyond it.
-- Null for sandboxes from before this migration; their specifications are read to measure them.
ALTER TABLE sandboxes ADD COLUMN projection_bytes integer;
