-- The plan of a new organization, unless the operator names another one (SANDYARD_DEFAULT_PLAN). Its limits keep one
-- organization from taking a whole machine. A plan of the operator with this name stays as it is.
INSERT INTO plans (name, limits, prices, updated_at) VALUES ('standard', '{
  "max_sandboxes": 200,
  "max_concurrent_ephemeral_running": 20,
  "max_concurrent_persistent_running": 20,
  "max_vcpus_per_sandbox": 4,
  "max_memory_mib_per_sandbox": 8192,
  "max_disk_size_mib_per_sandbox": 20480,
  "max_uptime_minutes_per_sandbox": 10080,
  "max_total_storage_gib": 50
}', NULL, now()) ON CONFLICT (name) DO NOTHING;
