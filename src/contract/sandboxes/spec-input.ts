import { Type, type Static } from 'typebox'
import * as limits from '../../domain/requests/request-bounds.ts'
import { NAME_RULE, SLUG_RULE } from '../../domain/sandboxes/names.ts'
import { PULL_POLICIES, RLIMIT_RESOURCES, SANDBOX_LOG_LEVELS, SECURITY_PROFILES } from '../../domain/spec/spec.ts'
import {
  nullableComponent,
  requestObject,
  int32,
  int64,
  stringEnumEitherCase,
  nullable,
  stringMap,
  Uuid,
  taggedUnion,
} from '../common.ts'
import { MountInput } from './mount-input.ts'
import { NetworkInput } from './network-input.ts'
import { PatchInput } from './patch-input.ts'
import { EnvVar } from './spec-shared.ts'

/** The body of a create request. Source: service description 4.1, the published description, and the recorded traffic. */

const ImageInput = Type.Unsafe<string | { type: 'oci' | 'Oci'; reference: string }>({
  title: 'ImageInput',
  description: 'The OCI image to run: its reference, alone or in an object.',
  anyOf: [requestObject({ type: stringEnumEitherCase(['oci']), reference: Type.String() }), { type: 'string' }],
})

const ResourcesInput = requestObject(
  {
    memory_mib: Type.Optional(int32({ default: 512, description: 'Memory in MiB.' })),
    vcpus: Type.Optional(int32({ default: 1, description: 'Virtual CPUs.' })),
    disk_size_mib: Type.Optional(nullable(int32({ description: 'Size of the writable disk in MiB.' }))),
  },
  { title: 'ResourcesInput', description: 'What the sandbox may use of its worker.' },
)

const Words = Type.Array(Type.String(), { maxItems: limits.ARGS_MAX })

const RuntimeInput = requestObject(
  {
    cmd: Type.Optional(nullable(Words)),
    entrypoint: Type.Optional(nullable(Words)),
    hostname: Type.Optional(nullable(Type.String())),
    log_level: Type.Optional(nullable(stringEnumEitherCase(SANDBOX_LOG_LEVELS))),
    metrics_sample_interval_ms: Type.Optional(nullable(int64({ default: 1000 }))),
    disable_metrics_sample: Type.Optional(Type.Boolean({ default: false })),
    scripts: Type.Optional(
      stringMap({ maxProperties: limits.SCRIPTS_MAX, description: 'Scripts on the PATH, by name.' }),
    ),
    shell: Type.Optional(nullable(Type.String())),
    user: Type.Optional(nullable(Type.String())),
    workdir: Type.Optional(nullable(Type.String())),
  },
  { title: 'RuntimeInput', description: 'How processes in the sandbox run; null or absent leaves it to the image.' },
)

const RlimitInput = requestObject(
  { resource: stringEnumEitherCase(RLIMIT_RESOURCES), soft: int64(), hard: int64() },
  { title: 'RlimitInput', description: 'A resource limit that every process of the sandbox inherits.' },
)

const InitInput = requestObject(
  {
    cmd: Type.String({ description: 'An absolute path in the sandbox, or `auto`.' }),
    args: Type.Optional(Words),
    env: Type.Optional(
      Type.Array(
        Type.Unsafe<[string, string]>({ type: 'array', items: { type: 'string' }, minItems: 2, maxItems: 2 }),
        { maxItems: limits.ENV_MAX },
      ),
    ),
  },
  { title: 'InitInput', description: 'The program to hand process 1 to.' },
)

const LifecycleInput = requestObject(
  {
    ephemeral: Type.Optional(
      Type.Boolean({ default: false, description: 'Whether to remove the sandbox once it has ended.' }),
    ),
    idle_timeout_secs: Type.Optional(nullable(int64({ maximum: limits.LIFETIME_MAX_SECS }))),
    max_duration_secs: Type.Optional(nullable(int64({ maximum: limits.LIFETIME_MAX_SECS }))),
  },
  { title: 'LifecycleInput', description: 'When the sandbox is to end by itself.' },
)

const RegistryInput = taggedUnion(
  'mode',
  [
    requestObject({ mode: stringEnumEitherCase(['auto']) }),
    requestObject({ mode: stringEnumEitherCase(['anonymous']) }),
    requestObject({ mode: stringEnumEitherCase(['specific']), credential_id: Uuid }),
    requestObject({
      mode: stringEnumEitherCase(['inline']),
      username: Type.String(),
      password: Type.String({ format: 'password' }),
    }),
  ],
  {
    title: 'RegistryInput',
    description: 'Which credential the pull presents; it never changes where the image comes from.',
  },
)

export const CreateSandboxInput = requestObject(
  {
    name: Type.Optional(nullable(Type.String({ description: `The name: ${NAME_RULE}. Empty or absent: the slug.` }))),
    slug: Type.Optional(nullable(Type.String({ description: `The slug: ${SLUG_RULE}. Absent: a free one is made.` }))),
    image: Type.Optional(ImageInput),
    source: Type.Optional(
      stringEnumEitherCase(['oci'], { description: 'With `reference`, another spelling of `image`.' }),
    ),
    reference: Type.Optional(Type.String()),
    pull_policy: Type.Optional(stringEnumEitherCase(PULL_POLICIES)),
    resources: Type.Optional(ResourcesInput),
    runtime: Type.Optional(RuntimeInput),
    env: Type.Optional(Type.Array(EnvVar, { maxItems: limits.ENV_MAX })),
    labels: Type.Optional(stringMap()),
    rlimits: Type.Optional(Type.Array(RlimitInput, { maxItems: limits.RLIMITS_MAX })),
    mounts: Type.Optional(Type.Array(MountInput, { maxItems: limits.MOUNTS_MAX })),
    patches: Type.Optional(Type.Array(PatchInput, { maxItems: limits.PATCHES_MAX })),
    network: Type.Optional(NetworkInput),
    init: Type.Optional(nullableComponent(InitInput)),
    security_profile: Type.Optional(stringEnumEitherCase(SECURITY_PROFILES)),
    lifecycle: Type.Optional(LifecycleInput),
    registry: Type.Optional(RegistryInput),
  },
  { title: 'CreateSandboxInput', description: 'What the sandbox is to be. Only an image is needed.' },
)
export type CreateSandboxInput = Static<typeof CreateSandboxInput>
