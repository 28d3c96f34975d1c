-- Several server processes on one database, and workers that come and go.

-- The server processes that serve. seen_at changes while one lives: whoever sees the same one for a while, by its own
-- clock, takes it for gone. url: how workers reach it; null: only by the address that they were given.
CREATE TABLE replicas (
  id uuid NOT NULL,
  url text,
  version text NOT NULL,
  schema_version integer NOT NULL,
  started_at timestamptz NOT NULL,
  seen_at timestamptz NOT NULL,
  CONSTRAINT replicas_pkey PRIMARY KEY (id)
);
ALTER TABLE replicas ENABLE ROW LEVEL SECURITY;
ALTER TABLE replicas FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON replicas USING (sandyard_is_system());

-- Who runs the loops. epoch: the fencing token, one more for each holder. beats: counted up by the holder; who wants the
-- lead takes it after it saw the same beats for the length of a lease by its own clock. That epoch is part of a key makes
-- taking the lead, and not a beat, wait for the transactions that hold the row FOR KEY SHARE.
CREATE TABLE leads (
  name text NOT NULL,
  holder uuid,
  epoch bigint NOT NULL,
  beats bigint NOT NULL,
  CONSTRAINT leads_pkey PRIMARY KEY (name),
  CONSTRAINT leads_epoch_key UNIQUE (name, epoch),
  CONSTRAINT leads_counts_positive CHECK (epoch >= 0 AND beats >= 0)
);
ALTER TABLE leads ENABLE ROW LEVEL SECURITY;
ALTER TABLE leads FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON leads USING (sandyard_is_system());

-- One row: by which key what is sealed was sealed, as an HMAC that tells nothing of the key.
CREATE TABLE sealing_key (
  is_the_one boolean NOT NULL,
  fingerprint bytea NOT NULL,
  CONSTRAINT sealing_key_pkey PRIMARY KEY (is_the_one),
  CONSTRAINT sealing_key_one_row CHECK (is_the_one),
  CONSTRAINT sealing_key_fingerprint_length CHECK (octet_length(fingerprint) = 32)
);
ALTER TABLE sealing_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE sealing_key FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON sealing_key USING (sandyard_is_system());

-- Streams that a server process waits for, where the worker does not stand by at it. Lost with a crash of the database: so
-- are the clients' connections to whoever waits.
CREATE UNLOGGED TABLE stream_tickets (
  ticket text NOT NULL,
  worker_id uuid NOT NULL,
  url text NOT NULL,
  asked json NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT stream_tickets_pkey PRIMARY KEY (ticket),
  CONSTRAINT stream_tickets_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers (id)
);
CREATE INDEX stream_tickets_of_worker ON stream_tickets (worker_id);
ALTER TABLE stream_tickets ENABLE ROW LEVEL SECURITY;
ALTER TABLE stream_tickets FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON stream_tickets USING (sandyard_is_system());

-- The right of one machine to join as a worker. Exchanged once: a second use by the same credential is the same exchange,
-- whose answer was lost.
CREATE TABLE worker_tokens (
  id uuid NOT NULL,
  -- The name that the worker gets by it; null: its own choice.
  name text,
  secret_sha256 bytea NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  used_at timestamptz,
  worker_id uuid,
  CONSTRAINT worker_tokens_pkey PRIMARY KEY (id),
  CONSTRAINT worker_tokens_secret_key UNIQUE (secret_sha256),
  CONSTRAINT worker_tokens_secret_length CHECK (octet_length(secret_sha256) = 32),
  CONSTRAINT worker_tokens_used_by_worker CHECK ((used_at IS NULL) = (worker_id IS NULL)),
  CONSTRAINT worker_tokens_worker_fkey FOREIGN KEY (worker_id) REFERENCES workers (id)
);
ALTER TABLE worker_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE worker_tokens FORCE ROW LEVEL SECURITY;
CREATE POLICY system ON worker_tokens USING (sandyard_is_system());

-- draining_since: it gets no new runs. drain_deadline_at: what still runs then is stopped. removed_at: it may not come back,
-- and its name is free; the row stays for the runs and volumes that were there.
ALTER TABLE workers ADD COLUMN draining_since timestamptz;
ALTER TABLE workers ADD COLUMN drain_deadline_at timestamptz;
ALTER TABLE workers ADD COLUMN removed_at timestamptz;
ALTER TABLE workers ADD CONSTRAINT workers_deadline_while_draining CHECK (drain_deadline_at IS NULL OR draining_since IS NOT NULL);
ALTER TABLE workers DROP CONSTRAINT workers_name_key;
CREATE UNIQUE INDEX workers_name_key ON workers (name) WHERE removed_at IS NULL;
ALTER TABLE workers DROP CONSTRAINT workers_credential_key;
CREATE UNIQUE INDEX workers_credential_key ON workers (credential_sha256) WHERE removed_at IS NULL;
CREATE INDEX workers_removed_credential ON workers (credential_sha256) WHERE removed_at IS NOT NULL;
-- What a removed worker had, and what a drain that is over asks to stop, are found by these.
CREATE INDEX workers_draining ON workers (drain_deadline_at) WHERE drain_deadline_at IS NOT NULL;
CREATE INDEX sandboxes_of_home ON sandboxes (home_worker_id) WHERE home_worker_id IS NOT NULL;
