-- secrets_sealed: the values of the sandbox's secrets, sealed with the installation's sealing key. Null: it has none, or
-- it was deleted. What else belongs to a secret is in spec.
ALTER TABLE sandboxes ADD COLUMN secrets_sealed bytea;
