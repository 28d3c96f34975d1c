-- secrets_version: rises with each change of secrets that the sandbox's open run must get. runs.secrets_sealed: the
-- secrets that an open run keeps although those of its sandbox changed, sealed with their values. Null: those of the
-- sandbox.
ALTER TABLE sandboxes ADD COLUMN secrets_version integer NOT NULL DEFAULT 0
  CONSTRAINT sandboxes_secrets_version_check CHECK (secrets_version >= 0);
ALTER TABLE runs ADD COLUMN secrets_sealed bytea;

-- The worker of a running sandbox must get changed secrets.
CREATE FUNCTION sandyard_secrets_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY[NEW.home_worker_id]);
  RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_secrets_changed AFTER UPDATE OF secrets_version ON sandboxes FOR EACH ROW
  WHEN (OLD.secrets_version <> NEW.secrets_version AND NEW.home_worker_id IS NOT NULL)
  EXECUTE FUNCTION sandyard_secrets_changed();
