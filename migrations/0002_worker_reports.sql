-- Which report of a worker was taken in last: one that was overtaken on its way must not undo what a later one said.
ALTER TABLE workers ADD COLUMN life uuid;
ALTER TABLE workers ADD COLUMN report_seq bigint NOT NULL DEFAULT 0;
