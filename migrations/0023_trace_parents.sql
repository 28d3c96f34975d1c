-- trace_parent: the span of the request that opened the run, as a W3C traceparent. Null: the request is not traced.
ALTER TABLE runs ADD COLUMN trace_parent text
  CONSTRAINT runs_trace_parent_check CHECK (trace_parent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$');
