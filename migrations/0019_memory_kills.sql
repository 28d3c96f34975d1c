ALTER TABLE runs ADD COLUMN memory_kills integer NOT NULL DEFAULT 0
  CONSTRAINT runs_memory_kills_check CHECK (memory_kills >= 0);
