-- The ranges of addresses that the operator opened for an organization, although SANDYARD_NETWORK_DENY denies them: address
-- blocks and names of groups. A policy of the organization must still allow them.
ALTER TABLE orgs ADD COLUMN network_allow text[] NOT NULL DEFAULT '{}';
ALTER TABLE orgs ADD CONSTRAINT orgs_network_allow_bound CHECK (cardinality(network_allow) <= 64);
