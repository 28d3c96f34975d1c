-- What many requests at once need.
SELECT 1;
