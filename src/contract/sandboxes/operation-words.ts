import { taggedReply } from '../operation.ts'
import { SandboxReply } from './sandboxes.ts'

/** What the routes by id and by name share. */

export const SANDBOX = taggedReply(SandboxReply, 'The sandbox as it is now.')
export const WAIT_PROBLEMS = ['sandbox_not_found', 'run_over', 'rate_limited'] as const
export const WAIT_DESCRIPTION =
  'Answers as soon as the status is one of those, or the time is over; its status says which. With `run`, a wait for what that run can no longer come to is refused as soon as that is so.'
export const START_PROBLEMS = [
  'sandbox_not_found', 'invalid_state_transition', 'quota_exceeded', 'org_suspended', 'rate_limited', 'orchestrator_unreachable',
] as const // prettier-ignore
export const STOP_PROBLEMS = ['sandbox_not_found', 'invalid_state_transition', 'orchestrator_unreachable'] as const
export const RENAME_PROBLEMS = ['sandbox_not_found', 'name_already_exists'] as const
export const STOP_DESCRIPTION =
  'Answers at once; the workload gets SIGTERM, and SIGKILL after a grace time. Stopping a sandbox that is stopping succeeds.'
export const START_DESCRIPTION =
  'With `wait_for` the answer comes when the sandbox runs, has failed, or the wait is over, whichever is first; its status says which.'
export const DELETE_DESCRIPTION =
  'A sandbox that still runs is stopped first, which the answer does not wait for. Its name and slug are free at once.'
