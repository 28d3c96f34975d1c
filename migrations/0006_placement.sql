-- What placement reads.
SELECT 1;
