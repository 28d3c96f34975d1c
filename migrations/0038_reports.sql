-- The rolled up runs of a sandbox that ended on a day or started on it, for a page of a report by sandbox: see src/store/usage/sandbox-days.ts.
CREATE INDEX runs_rolled_up_of_sandbox ON runs (sandbox_id, ended_at) WHERE rolled_up_at IS NOT NULL;
CREATE INDEX runs_across_midnight_of_sandbox ON runs (sandbox_id, started_at)
  WHERE rolled_up_at IS NOT NULL AND (started_at AT TIME ZONE 'UTC')::date <> (ended_at AT TIME ZONE 'UTC')::date;
