-- What many requests at once need.

-- What each transition asks of a specification, so that it need not be unpacked and parsed for two numbers.
ALTER TABLE sandboxes ADD COLUMN disk_size_mib integer;
ALTER TABLE sandboxes ADD COLUMN max_duration_secs bigint;
UPDATE sandboxes SET disk_size_mib = (spec #>> '{resources,disk_size_mib}')::integer,
  max_duration_secs = (spec #>> '{lifecycle,max_duration_secs}')::bigint;

-- Three sandboxes a page leave room for a new version of one: 43 % of a life's changes of its row stay within their page and
-- its indexes untouched, in place of 4 % (2026-11).
ALTER TABLE sandboxes SET (fillfactor = 65);
