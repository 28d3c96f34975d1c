import type { SandboxSpec } from '../../src/domain/spec/spec.ts'

/** A spec with default values. */
export const DEFAULT_SPEC_FOR_TESTS: SandboxSpec = {
  image: 'registry.example/box:1',
  pull_policy: 'if_missing',
  resources: { memory_mib: 256, vcpus: 1, disk_size_mib: null },
  runtime: {
    cmd: null,
    entrypoint: null,
    hostname: null,
    log_level: null,
    metrics_sample_interval_ms: null,
    disable_metrics_sample: false,
    scripts: {},
    shell: null,
    user: null,
    workdir: null,
  },
  env: [],
  labels: {},
  rlimits: [],
  mounts: [],
  patches: [],
  network: { enabled: false, strict: false, max_connections: null, policy: null, secrets: [] },
  init: null,
  security_profile: 'default',
  lifecycle: { ephemeral: false, idle_timeout_secs: null, max_duration_secs: null },
}

/** A spec that every worker can enforce, so a create is accepted even without a worker. */
export const PLAIN_SPEC: SandboxSpec = {
  ...DEFAULT_SPEC_FOR_TESTS,
  network: { ...DEFAULT_SPEC_FOR_TESTS.network, enabled: true },
}
