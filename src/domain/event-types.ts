/** The catalogue of audit events: each type with its category and what its payload tells. */
export const EVENT_TYPES = {
  org_created: { category: 'org', tells: 'name' },
  member_added: { category: 'member', tells: 'user_id, role' },
  api_key_created: { category: 'api_key', tells: 'api_key_id, name, role' },
  registry_credential_saved: { category: 'registry_credential', tells: 'credential_id, host, username' },
  volume_created: { category: 'volume', tells: 'volume_id, kind' },
  sandbox_created: { category: 'sandbox', tells: 'sandbox_id, name, slug, image' },
  sandbox_renamed: { category: 'sandbox', tells: 'sandbox_id, name, slug' },
  sandbox_starting: { category: 'sandbox', tells: 'sandbox_id, run_id' },
  sandbox_placed: { category: 'sandbox', tells: 'sandbox_id, run_id, worker' },
  sandbox_running: {
    category: 'sandbox',
    tells: 'sandbox_id, run_id, isolation and image digest as the driver reports them',
  },
  sandbox_stopping: { category: 'sandbox', tells: 'sandbox_id, run_id, cause' },
  sandbox_stopped: { category: 'sandbox', tells: 'sandbox_id, run_id, cause' },
  sandbox_failed: { category: 'sandbox', tells: 'sandbox_id, run_id, cause, message' },
  sandbox_deleted: { category: 'sandbox', tells: 'sandbox_id, name, slug' },
} as const

export type EventType = keyof typeof EVENT_TYPES
