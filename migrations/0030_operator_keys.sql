-- Keys with which the `sandyard` command reads what is of the whole installation, such as what all sandboxes use.
ALTER TABLE api_keys ADD COLUMN is_operator boolean NOT NULL DEFAULT false;
