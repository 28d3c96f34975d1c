-- The transaction that recorded an event. Null: an earlier version did. A stream of events reads the events of all transactions that
-- are over, so that it misses none: see src/store/events/event-windows.ts.
ALTER TABLE events ADD COLUMN xact xid8;
ALTER TABLE events ALTER COLUMN xact SET DEFAULT pg_current_xact_id();
CREATE INDEX events_stream ON events (org_id, xact) WHERE xact IS NOT NULL;
