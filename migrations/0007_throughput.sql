-- What many requests at once need.

-- What each transition asks of a specification, so that it need not be unpacked and parsed for two numbers.
ALTER TABLE sandboxes ADD COLUMN disk_size_mib integer;
ALTER TABLE sandboxes ADD COLUMN max_duration_secs bigint;
UPDATE sandboxes SET disk_size_mib = (spec #>> '{resources,disk_size_mib}')::integer,
  max_duration_secs = (spec #>> '{lifecycle,max_duration_secs}')::bigint;
