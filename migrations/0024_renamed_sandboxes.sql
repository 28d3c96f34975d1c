-- A worker logs the names of its sandboxes. Therefore a rename raises the generation of the home worker, too. This
-- trigger costs other updates nothing: it is of the one column.
CREATE FUNCTION sandyard_sandbox_renamed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM sandyard_raise_generations(ARRAY[NEW.home_worker_id]);
  RETURN NULL;
END $$;
CREATE TRIGGER sandboxes_renamed AFTER UPDATE OF name ON sandboxes FOR EACH ROW
  WHEN (OLD.name <> NEW.name AND NEW.home_worker_id IS NOT NULL) EXECUTE FUNCTION sandyard_sandbox_renamed();
