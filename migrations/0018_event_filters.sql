-- Pages of events by sandbox and by actor, each from one range of an index: see src/store/events/event-pages.ts.
--
-- actor_key: the id of the key or user that caused the event, or the code of a system actor. Null: the program itself, which causes
-- most events, so that they take no space in the index. It is a column because row-level security keeps PostgreSQL from using an
-- index on an expression over `actor`.
ALTER TABLE events ADD COLUMN actor_key text GENERATED ALWAYS AS (
  nullif(coalesce(actor ->> 'api_key_id', actor ->> 'user_id', actor ->> 'key_id', actor ->> 'code'), 'sandyard')) STORED;
CREATE INDEX events_of_actor ON events (org_id, actor_key, id DESC) WHERE actor_key IS NOT NULL;
CREATE INDEX events_of_sandbox ON events (org_id, sandbox_id, id DESC) WHERE sandbox_id IS NOT NULL;
