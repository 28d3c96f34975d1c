import { Type } from 'typebox'
import { HEADER_FIELDS_MAX, HOSTS_MAX, SECRETS_MAX } from '../../domain/requests/request-bounds.ts'
import { VIOLATION_ACTIONS } from '../../domain/spec/secrets.ts'
import { nullable, nullableComponent, requestObject, stringEnumSnakeOrPascal, taggedUnion } from '../common.ts'

/** The schemas of secrets in requests. */

const HostPattern = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['exact']), value: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['wildcard']), value: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['any']) }),
  ],
  {
    title: 'HostPattern',
    description: 'A host by name or address, the subdomains of a name and the name itself, or any host.',
  },
)
export const Hosts = Type.Array(HostPattern, { maxItems: HOSTS_MAX })

export const ViolationActionInput = requestObject(
  { type: stringEnumSnakeOrPascal(VIOLATION_ACTIONS) },
  {
    title: 'ViolationActionInput',
    description: 'What happens to a request that carries the placeholder of a secret to a host that may not get it.',
  },
)

const ViolationInput = taggedUnion(
  'type',
  [
    ...VIOLATION_ACTIONS.map((action) => requestObject({ type: stringEnumSnakeOrPascal([action]) })),
    requestObject({ type: stringEnumSnakeOrPascal(['passthrough']), hosts: Hosts }),
  ],
  {
    title: 'ViolationInput',
    description: 'An earlier spelling of `violation_action` and `passthrough_hosts`.',
  },
)

const SecretSource = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['env']), var: Type.String() }),
    requestObject({ type: stringEnumSnakeOrPascal(['store']), reference: Type.String() }),
  ],
  { title: 'SecretSource', description: 'Where the client stores the value. The server can not read it there.' },
)

const flag = Type.Optional(Type.Boolean())

export const SubstitutionInput = requestObject(
  {
    headers: flag,
    basic_auth: Type.Optional(Type.Boolean({ description: 'Absent: as `headers`.' })),
    header_fields: Type.Optional(
      nullable(
        Type.Array(Type.String(), {
          maxItems: HEADER_FIELDS_MAX,
          description: 'The only header fields in which the value is put. Absent: all.',
        }),
      ),
    ),
    query: flag,
    body: flag,
  },
  { title: 'SubstitutionInput', description: 'Where the value is put in. Absent: in header fields alone.' },
)

const SecretInput = requestObject(
  {
    env_var: Type.String({ description: 'The variable in which the sandbox sees the placeholder.' }),
    placeholder: Type.Optional(Type.String({ description: 'Absent: `$MSB_` and the variable.' })),
    value: Type.Optional(Type.String({ format: 'password' })),
    source: Type.Optional(nullableComponent(SecretSource)),
    allowed_hosts: Type.Optional(Hosts),
    injection: Type.Optional(
      requestObject(
        { headers: flag, basic_auth: flag, query_params: flag, body: flag },
        { description: 'An earlier spelling of `substitution`.' },
      ),
    ),
    on_violation: Type.Optional(nullableComponent(ViolationInput)),
    require_tls_identity: flag,
    substitution: Type.Optional(SubstitutionInput),
    passthrough_hosts: Type.Optional(Hosts),
    violation_action: Type.Optional(nullableComponent(ViolationActionInput)),
  },
  { title: 'SecretInput', description: 'A secret that the sandbox sees only as a placeholder.' },
)

export const SecretsInput = requestObject(
  {
    entries: Type.Optional(Type.Array(SecretInput, { maxItems: SECRETS_MAX })),
    on_violation: Type.Optional(ViolationInput),
    passthrough_hosts: Type.Optional(Hosts),
    violation_action: Type.Optional(ViolationActionInput),
  },
  {
    title: 'SecretsInput',
    description: 'Secrets, and what happens when a placeholder would reach a host that may not get the secret.',
  },
)
