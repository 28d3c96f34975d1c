-- Limits on requests.
SELECT 1;
