import { Type } from 'typebox'
import { HOSTS_MAX, SECRETS_MAX } from '../../domain/requests/request-bounds.ts'
import { DISPOSITIONS, MODIFICATION_POLICIES, SECRET_CHANGES } from '../../domain/spec/secret-plan.ts'
import { SANDBOX_STATUSES } from '../../domain/sandboxes/lifecycle.ts'
import { requestObject, stringEnum, stringEnumSnakeOrPascal, taggedUnion } from '../common.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'
import { SandboxIdParams } from './sandboxes.ts'
import { Hosts, SubstitutionInput, ViolationActionInput } from './secrets-input.ts'

/** Changes of a sandbox that exists. Only its secrets can change. */

const secretFields = {
  placeholder: Type.Optional(Type.String()),
  allowed_hosts: Type.Optional({ ...Hosts, minItems: 1, maxItems: HOSTS_MAX }),
  substitution: Type.Optional(SubstitutionInput),
  passthrough_hosts: Type.Optional(Hosts),
  violation_action: Type.Optional(ViolationActionInput),
  require_tls_identity: Type.Optional(Type.Boolean()),
}
const name = Type.String({ description: 'The variable in which the sandbox sees the placeholder.' })

const PlannedSecretInput = requestObject(
  {
    name,
    material: Type.Optional(
      requestObject(
        { type: stringEnumSnakeOrPascal(['provided', 'absent']) },
        { description: 'Whether the modification will give a value.' },
      ),
    ),
    ...secretFields,
  },
  { title: 'PlannedSecretInput', description: 'A secret to add or to change. Absent fields keep their values.' },
)

const ModifiedSecretInput = requestObject(
  {
    name,
    value: Type.Optional(
      Type.String({ format: 'password', description: 'The new value. Absent: the secret keeps its value.' }),
    ),
    ...secretFields,
  },
  { title: 'ModifiedSecretInput', description: 'A secret to add or to change. Absent fields keep their values.' },
)

const policy = Type.Optional(
  stringEnumSnakeOrPascal(MODIFICATION_POLICIES, {
    description:
      'When the changes take effect. `no_restart`, which is the default: at once, and changes for which this is impossible are refused. `next_start`: when the sandbox starts next.',
  }),
)
const secrets_remove = Type.Optional(Type.Array(Type.String(), { maxItems: SECRETS_MAX }))
/** Another field is refused with `modification_unsupported` if it asks for anything. */
const open = { additionalProperties: true }

const ModificationPlanInput = Type.Object(
  { policy, secrets: Type.Optional(Type.Array(PlannedSecretInput, { maxItems: SECRETS_MAX })), secrets_remove },
  { title: 'ModificationPlanInput', description: 'Changes to plan. Only secrets can change.', ...open },
)

const ModificationInput = Type.Object(
  { policy, secrets: Type.Optional(Type.Array(ModifiedSecretInput, { maxItems: SECRETS_MAX })), secrets_remove },
  { title: 'ModificationInput', description: 'Changes to make. Only secrets can change.', ...open },
)

const disposition = {
  disposition: stringEnum(DISPOSITIONS, { description: 'When the change takes effect.' }),
  reason: Type.Optional(Type.String()),
}

const ModificationChangeReply = taggedUnion(
  'kind',
  [
    Type.Object({
      kind: stringEnum(['config']),
      field: Type.String(),
      change: stringEnum(['updated']),
      ...disposition,
    }),
    Type.Object({
      kind: stringEnum(['secret']),
      field: stringEnum(['secret']),
      name: Type.String(),
      change: stringEnum(SECRET_CHANGES),
      before_ref: Type.Optional(Type.String({ description: 'The placeholder before the change.' })),
      after_ref: Type.Optional(Type.String({ description: 'The placeholder after the change.' })),
      allow_hosts: Type.Array(Type.String()),
      ...disposition,
    }),
  ],
  { title: 'ModificationChange', description: 'A change of a secret, or of the rules of a secret.' },
)

const ModificationNote = Type.Object(
  { field: Type.String(), message: Type.String() },
  { title: 'ModificationNote', description: 'A conflict, which prevents the changes, or a warning.' },
)

export const ModificationReply = Type.Object(
  {
    sandbox: Type.String({ description: "The sandbox's name." }),
    status: stringEnum(SANDBOX_STATUSES),
    applied: Type.Boolean({ description: 'Whether the changes are made. A plan makes none.' }),
    policy: stringEnum(MODIFICATION_POLICIES),
    changes: Type.Array(ModificationChangeReply),
    conflicts: Type.Array(ModificationNote),
    warnings: Type.Array(ModificationNote),
    resize_status: Type.Array(Type.Object({}), { description: 'Always empty: resources can not change.' }),
  },
  { title: 'Modification', description: 'What a modification changes, and when.' },
)

const PROBLEMS = ['sandbox_not_found', 'invalid_sandbox_config', 'modification_unsupported'] as const

export const MODIFICATION_OPERATIONS = {
  plan_modification: defineOperation({
    id: 'plan_modification',
    method: 'POST',
    isResumable: true,
    path: '/v1/sandboxes/{sandbox_id}/modifications/plan',
    tag: 'Sandboxes',
    summary: 'Plan a change of a sandbox',
    description: 'Replies what the change would do, and changes nothing. Values are not sent.',
    params: SandboxIdParams,
    body: ModificationPlanInput,
    reply: jsonReply(ModificationReply, 'The plan.'),
    problems: PROBLEMS,
  }),
  modify_sandbox: defineOperation({
    id: 'modify_sandbox',
    method: 'PUT',
    path: '/v1/sandboxes/{sandbox_id}',
    tag: 'Sandboxes',
    summary: 'Change the secrets of a sandbox',
    description:
      'Makes all changes or none. May be repeated. A new value reaches a running sandbox within seconds, for new connections.',
    params: SandboxIdParams,
    body: ModificationInput,
    reply: jsonReply(ModificationReply, 'The changes that were made.'),
    problems: [...PROBLEMS, 'modification_refused', 'modification_in_progress', 'modification_failed'],
  }),
} as const satisfies Record<string, Operation>
