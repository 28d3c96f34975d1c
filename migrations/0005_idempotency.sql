-- Requests that came with an Idempotency-Key. id: chosen before anything is done, for what the request makes. claim: the
-- try that serves it until claimed_until, as long as there is no reply. note: what a try did, written with it in one
-- transaction. The reply is sealed: it may hold a secret.
CREATE TABLE idempotency (
  org_id uuid NOT NULL,
  key text COLLATE "C" NOT NULL,
  request_sha256 bytea NOT NULL,
  id uuid NOT NULL,
  claim uuid NOT NULL,
  claimed_until timestamptz NOT NULL,
  tries integer NOT NULL,
  note bytea,
  reply_sealed bytea,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT idempotency_pkey PRIMARY KEY (org_id, key),
  CONSTRAINT idempotency_org_fkey FOREIGN KEY (org_id) REFERENCES orgs (id),
  CONSTRAINT idempotency_key_length CHECK (octet_length(key) BETWEEN 1 AND 255),
  CONSTRAINT idempotency_request_length CHECK (octet_length(request_sha256) = 32),
  CONSTRAINT idempotency_tries_positive CHECK (tries > 0)
);
CREATE INDEX idempotency_expiry ON idempotency (expires_at);
ALTER TABLE idempotency ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON idempotency USING (sandyard_sees(org_id));

-- The latest run of a sandbox, open or over: what is waited for may be pinned to it.
ALTER TABLE sandboxes ADD COLUMN run_id uuid;
UPDATE sandboxes s SET run_id = (
  SELECT r.id FROM runs r WHERE r.sandbox_id = s.id ORDER BY r.opened_at DESC, r.id DESC LIMIT 1);
