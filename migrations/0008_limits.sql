-- What two labels a sandbox has both is one range of an index, however many sandboxes have either: a walk of one label that
-- looks for the other costs as many steps as the label has sandboxes when none has both (138 ms at 100,000, 2026-11).
--
-- A row for each two labels of a sandbox. One with more than 16 labels has a row for each label instead, so that a create
-- writes 120 rows at most. Rows follow from sandbox_labels: triggers keep them. All labels of a sandbox are written by one
-- statement and deleted by one. pair: 8 bytes of a hash; who reads looks at the labels themselves as well.
CREATE TABLE sandbox_label_pairs (
  org_id uuid NOT NULL,
  pair bytea NOT NULL,
  sandbox_id uuid NOT NULL,
  CONSTRAINT sandbox_label_pairs_pkey PRIMARY KEY (org_id, pair, sandbox_id),
  CONSTRAINT sandbox_label_pairs_length CHECK (octet_length(pair) = 8)
);
ALTER TABLE sandbox_label_pairs ENABLE ROW LEVEL SECURITY;
ALTER TABLE sandbox_label_pairs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sandbox_label_pairs USING (sandyard_sees(org_id));

-- Two labels in the order of their keys, by their bytes; a label alone with two empty texts. Labels hold no control characters.
CREATE FUNCTION sandyard_label_pair(key text, value text, other_key text, other_value text) RETURNS bytea
  LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN substring(sha256(convert_to(concat_ws(U&'\0001', key, value, other_key, other_value), 'UTF8')) FROM 1 FOR 8);

CREATE FUNCTION sandyard_add_label_pairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WITH wide AS (SELECT sandbox_id FROM changed GROUP BY sandbox_id HAVING count(*) > 16)
  INSERT INTO sandbox_label_pairs (org_id, pair, sandbox_id)
  SELECT a.org_id, sandyard_label_pair(a.key, a.value, b.key, b.value), a.sandbox_id
  FROM changed a JOIN changed b ON b.sandbox_id = a.sandbox_id AND a.key < b.key
  WHERE a.sandbox_id NOT IN (SELECT sandbox_id FROM wide)
  UNION ALL
  SELECT org_id, sandyard_label_pair(key, value, '', ''), sandbox_id FROM changed
  WHERE sandbox_id IN (SELECT sandbox_id FROM wide)
  ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;

CREATE FUNCTION sandyard_drop_label_pairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM sandbox_label_pairs p USING (
    SELECT a.org_id, sandyard_label_pair(a.key, a.value, b.key, b.value) AS pair, a.sandbox_id
    FROM changed a JOIN changed b ON b.sandbox_id = a.sandbox_id AND a.key < b.key
    UNION ALL
    SELECT org_id, sandyard_label_pair(key, value, '', ''), sandbox_id FROM changed) gone
  WHERE p.org_id = gone.org_id AND p.pair = gone.pair AND p.sandbox_id = gone.sandbox_id;
  RETURN NULL;
END $$;

CREATE TRIGGER sandbox_labels_added AFTER INSERT ON sandbox_labels
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION sandyard_add_label_pairs();
CREATE TRIGGER sandbox_labels_dropped AFTER DELETE ON sandbox_labels
  REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION sandyard_drop_label_pairs();

-- What is there already, by the same function.
CREATE TEMPORARY TABLE labels_before ON COMMIT DROP AS SELECT * FROM sandbox_labels;
CREATE TRIGGER labels_before_added AFTER INSERT ON labels_before
  REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION sandyard_add_label_pairs();
INSERT INTO labels_before SELECT * FROM labels_before;
