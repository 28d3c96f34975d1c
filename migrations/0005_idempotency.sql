-- Replies that are remembered by their Idempotency-Key.
SELECT 1;
