-- disk: the file system with the worker's data folder, as its last report says. Null: the worker doesn't watch it.
-- is_disk_short: whether the last audit event about the disk said that it is short.
ALTER TABLE workers ADD COLUMN disk jsonb, ADD COLUMN is_disk_short boolean NOT NULL DEFAULT false;
