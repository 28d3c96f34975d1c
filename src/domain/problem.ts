/** Every problem that a client can get, by its code, with the HTTP status and the beginning of the message. */
export const PROBLEMS = {
  invalid_request: { status: 400, message: 'invalid request' },
  invalid_sandbox_config: { status: 400, message: 'invalid sandbox config' },
  invalid_volume_path: { status: 400, message: 'invalid volume path' },
  invalid_api_key: { status: 401, message: 'unauthorized' },
  not_signed_in: { status: 401, message: 'not signed in' },
  invalid_sign_in_link: { status: 401, message: 'this sign-in link was used, replaced, or has expired' },
  oidc_failed: { status: 400, message: 'the sign-in was not completed: start it again' },
  oidc_denied: { status: 403, message: 'the provider did not sign you in' },
  oidc_no_member: { status: 403, message: 'you are not a member of any organization here' },
  oidc_email_unverified: { status: 403, message: 'the provider has not verified your e-mail address' },
  oidc_other_identity: { status: 403, message: 'this e-mail address belongs to another account of the provider' },
  oidc_unavailable: { status: 503, message: 'the provider of sign-in can not be reached' },
  invalid_join_token: { status: 401, message: 'invalid join token' },
  worker_removed: { status: 401, message: 'this worker was removed' },
  forbidden: { status: 403, message: 'forbidden' },
  quota_exceeded: { status: 403, message: 'quota exceeded' },
  org_suspended: { status: 403, message: 'organization suspended' },
  not_found: { status: 404, message: 'not found' },
  org_not_found: { status: 404, message: 'org not found' },
  sandbox_not_found: { status: 404, message: 'resource not found' },
  event_not_found: { status: 404, message: 'resource not found' },
  volume_not_found: { status: 404, message: 'resource not found' },
  snapshot_not_found: { status: 404, message: 'resource not found' },
  snapshot_operation_not_found: { status: 404, message: 'resource not found' },
  volume_file_not_found: { status: 404, message: 'no such file or directory' },
  preview_not_found: { status: 404, message: 'resource not found' },
  webhook_not_found: { status: 404, message: 'resource not found' },
  webhook_delivery_not_found: { status: 404, message: 'resource not found' },
  api_key_not_found: { status: 404, message: 'resource not found' },
  ssh_key_not_found: { status: 404, message: 'resource not found' },
  registry_credential_not_found: { status: 404, message: 'resource not found' },
  member_not_found: { status: 404, message: 'resource not found' },
  session_not_found: { status: 404, message: 'resource not found' },
  method_not_allowed: { status: 405, message: 'method not allowed' },
  invalid_state_transition: { status: 409, message: 'invalid state transition' },
  volume_in_use: { status: 409, message: 'volume in use' },
  volume_file_conflict: { status: 409, message: 'conflict with an existing file or folder' },
  worker_life_over: { status: 409, message: 'a newer process of this worker has reported since' },
  worker_in_use: { status: 409, message: 'worker in use' },
  idempotency_key_reused: { status: 409, message: 'idempotency key reused' },
  idempotency_key_in_use: { status: 409, message: 'idempotency key in use' },
  idempotency_reply_lost: { status: 409, message: 'the reply to this request was lost' },
  modification_unsupported: { status: 409, message: 'only secrets of a sandbox can change' },
  modification_refused: { status: 409, message: 'modification refused' },
  modification_in_progress: { status: 409, message: 'another change of this sandbox is in progress' },
  run_over: { status: 409, message: 'run over' },
  name_already_exists: { status: 409, message: "'name' already exists" },
  // The public clients map a code before its status: `name_already_exists` would be an error about a sandbox.
  member_already_exists: { status: 409, message: 'member already exists' },
  ssh_key_already_exists: { status: 409, message: 'ssh key already exists' },
  volume_already_exists: { status: 409, message: "'name' already exists" },
  snapshot_name_already_exists: { status: 409, message: "'name' already exists" },
  // The public API answers this problem with `invalid_request` and 409. Every other `invalid_request` is a 400.
  default_volume_protected: { status: 409, message: 'the default volume cannot be deleted', code: 'invalid_request' },
  precondition_failed: { status: 412, message: 'precondition failed' },
  payload_too_large: { status: 413, message: 'payload too large' },
  unsupported_media_type: { status: 415, message: 'unsupported media type' },
  rate_limited: { status: 429, message: 'too many requests' },
  internal_error: { status: 500, message: 'internal error' },
  orchestrator_unreachable: { status: 502, message: 'orchestrator unreachable' },
  start_timed_out: { status: 504, message: 'start timed out' },
  modification_failed: { status: 503, message: 'modification failed' },
  unavailable: { status: 503, message: 'service unavailable' },
} as const

export type ProblemCode = keyof typeof PROBLEMS

/** The code that a client gets. It is the key in the table, unless the public API uses one code with two statuses. */
export function publicCode(code: ProblemCode): string {
  const problem = PROBLEMS[code]
  return 'code' in problem ? problem.code : code
}

/**
 * The optional parts of a problem. `details` contains the field or limit, the value that was found, and the accepted
 * values.
 */
export type ProblemOptions = {
  readonly message?: string
  readonly details?: Readonly<Record<string, unknown>>
  readonly retryAfterSeconds?: number
  readonly cause?: unknown
}

/**
 * A problem that the client gets as the reply. Code in `control` and `http` throws it, and `http` renders it in one
 * place.
 */
export class Problem extends Error {
  readonly code: ProblemCode
  readonly details: Readonly<Record<string, unknown>> | null
  readonly retryAfterSeconds: number | null
  constructor(code: ProblemCode, options: ProblemOptions = {}) {
    super(options.message ?? PROBLEMS[code].message, { cause: options.cause })
    this.code = code
    this.details = options.details ?? null
    this.retryAfterSeconds = options.retryAfterSeconds ?? null
  }
}
