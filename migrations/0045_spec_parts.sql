-- The parts of a large `spec` that placements read, in its shape: `image`, `network.ports` and `mounts`. PostgreSQL reads, unpacks and parses the whole
-- specification for each of them: 40 ms for 4 MiB (2026-11), at each read of a sandbox that waits for capacity. Null: `spec` itself is read.
ALTER TABLE sandboxes ADD COLUMN spec_parts json;
UPDATE sandboxes SET spec_parts = json_build_object('image', spec -> 'image', 'network', json_build_object('ports', spec -> 'network' -> 'ports'),
    'mounts', spec -> 'mounts')
  WHERE visible_until IS NULL AND pg_column_size(spec) > 16384;
