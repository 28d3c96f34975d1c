import { Type, type Static } from 'typebox'
import {
  DISK_IMAGE_FORMATS,
  HOST_PERMISSIONS,
  PULL_POLICIES,
  RLIMIT_RESOURCES,
  SANDBOX_LOG_LEVELS,
  SECURITY_PROFILES,
  STAT_VIRTUALIZATIONS,
} from '../../domain/spec/spec.ts'
import {
  int32,
  int64,
  nullable,
  nullableComponent,
  requestObject,
  stringEnumSnakeOrPascal,
  stringMap,
  taggedUnion,
  Uuid,
} from '../common.ts'
import { FILE_MODE_MAX } from '../../domain/requests/request-bounds.ts'
import * as limits from '../../domain/requests/request-bounds.ts'
import { NAME_RULE, SLUG_RULE } from '../../domain/names.ts'
import { NetworkInput } from './network-input.ts'
import { EnvVar } from './spec-shared.ts'

const MountOptionsInput = requestObject(
  {
    readonly: Type.Optional(Type.Boolean({ default: false })),
    noexec: Type.Optional(Type.Boolean({ default: false })),
    nosuid: Type.Optional(Type.Boolean({ default: false })),
    nodev: Type.Optional(Type.Boolean({ default: false })),
  },
  { title: 'MountOptionsInput', description: 'What processes can not do on a mount.' },
)

const mountPoint = {
  guest: Type.String({ description: 'An absolute path in the sandbox.' }),
  options: Type.Optional(MountOptionsInput),
}
const ownership = {
  stat_virtualization: Type.Optional(stringEnumSnakeOrPascal(STAT_VIRTUALIZATIONS)),
  host_permissions: Type.Optional(stringEnumSnakeOrPascal(HOST_PERMISSIONS)),
}
const host = Type.String({ description: "A path on the organization's default volume." })

/** Something to mount in the sandbox. */
export const MountInput = taggedUnion(
  'type',
  [
    requestObject({
      type: stringEnumSnakeOrPascal(['bind']),
      host,
      ...mountPoint,
      ...ownership,
      quota_mib: Type.Optional(nullable(int32())),
    }),
    requestObject({ type: stringEnumSnakeOrPascal(['named']), name: Type.String(), ...mountPoint, ...ownership }),
    requestObject({
      type: stringEnumSnakeOrPascal(['tmpfs']),
      ...mountPoint,
      size_mib: Type.Optional(nullable(int32())),
    }),
    requestObject({
      type: stringEnumSnakeOrPascal(['disk_image']),
      host,
      ...mountPoint,
      format: stringEnumSnakeOrPascal(DISK_IMAGE_FORMATS),
      fstype: Type.Optional(nullable(Type.String())),
    }),
  ],
  { title: 'MountInput', description: 'Something to mount in the sandbox.' },
)

const path = Type.String({ description: 'An absolute path in the sandbox.' })
const mode = Type.Optional(
  nullable(int32({ maximum: FILE_MODE_MAX, description: 'Permissions as a number, such as 420 for 0o644.' })),
)
const replace = Type.Optional(
  Type.Boolean({ default: false, description: 'Whether to replace what exists at the path.' }),
)
const src = Type.String({ description: "A path on the organization's default volume." })
const bytes = Type.Array(int32({ maximum: 255 }), { description: 'Bytes as numbers.' })

/** A change to the root file system before the sandbox starts. */
export const PatchInput = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumSnakeOrPascal(['text']), path, content: Type.String(), mode, replace }),
    requestObject({ type: stringEnumSnakeOrPascal(['file']), path, content: bytes, mode, replace }),
    requestObject({ type: stringEnumSnakeOrPascal(['copy_file']), src, dst: path, mode, replace }),
    requestObject({ type: stringEnumSnakeOrPascal(['copy_dir']), src, dst: path, replace }),
    requestObject({ type: stringEnumSnakeOrPascal(['symlink']), target: Type.String(), link: path, replace }),
    requestObject({ type: stringEnumSnakeOrPascal(['mkdir']), path, mode }),
    requestObject({ type: stringEnumSnakeOrPascal(['remove']), path }),
    requestObject({ type: stringEnumSnakeOrPascal(['append']), path, content: Type.String() }),
  ],
  { title: 'PatchInput', description: 'A change to the root file system before the start.' },
)

/** The body of a create request. */

const ImageInput = Type.Unsafe<string | { type: 'oci' | 'Oci'; reference: string }>({
  title: 'ImageInput',
  description: 'The OCI image to run: its reference, alone or in an object.',
  anyOf: [
    requestObject(
      { type: stringEnumSnakeOrPascal(['oci']), reference: Type.String() },
      { title: 'ImageInputOci', description: 'An image of a registry.' },
    ),
    { type: 'string' },
  ],
})

const DiskSnapshotRef = taggedUnion(
  'type',
  [
    requestObject(
      {
        type: stringEnumSnakeOrPascal(['managed']),
        id: Type.String({ description: 'The id or the name of the snapshot.' }),
      },
      { title: 'DiskSnapshotRefManaged', description: 'A snapshot of the organization.' },
    ),
    requestObject(
      { type: stringEnumSnakeOrPascal(['host_volume']), path: Type.String({ description: 'Not supported.' }) },
      { title: 'DiskSnapshotRefHostVolume', description: 'Not supported: a snapshot on the default volume.' },
    ),
  ],
  { title: 'DiskSnapshotRef', description: 'The snapshot from which the disk is made.' },
)

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
    log_level: Type.Optional(nullable(stringEnumSnakeOrPascal(SANDBOX_LOG_LEVELS))),
    metrics_sample_interval_ms: Type.Optional(nullable(int64({ default: 1000 }))),
    disable_metrics_sample: Type.Optional(Type.Boolean({ default: false })),
    scripts: Type.Optional(
      stringMap({ maxProperties: limits.SCRIPTS_MAX, description: 'Scripts on the PATH, by name.' }),
    ),
    shell: Type.Optional(nullable(Type.String())),
    user: Type.Optional(nullable(Type.String())),
    workdir: Type.Optional(nullable(Type.String())),
  },
  { title: 'RuntimeInput', description: 'How processes in the sandbox run. Null or absent: the value of the image.' },
)

const RlimitInput = requestObject(
  { resource: stringEnumSnakeOrPascal(RLIMIT_RESOURCES), soft: int64(), hard: int64() },
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
  { title: 'InitInput', description: 'The program that becomes process 1.' },
)

const LifecycleInput = requestObject(
  {
    ephemeral: Type.Optional(
      Type.Boolean({ default: false, description: 'Whether to remove the sandbox once it has ended.' }),
    ),
    idle_timeout_secs: Type.Optional(nullable(int64({ maximum: limits.LIFETIME_MAX_SECS }))),
    max_duration_secs: Type.Optional(nullable(int64({ maximum: limits.LIFETIME_MAX_SECS }))),
  },
  { title: 'LifecycleInput', description: 'When the sandbox is stopped automatically.' },
)

const RegistryInput = taggedUnion(
  'mode',
  [
    requestObject({ mode: stringEnumSnakeOrPascal(['auto']) }),
    requestObject({ mode: stringEnumSnakeOrPascal(['anonymous']) }),
    requestObject({ mode: stringEnumSnakeOrPascal(['specific']), credential_id: Uuid }),
    requestObject({
      mode: stringEnumSnakeOrPascal(['inline']),
      username: Type.String(),
      password: Type.String({ format: 'password' }),
    }),
  ],
  {
    title: 'RegistryInput',
    description: 'Which credential the pull uses. It never changes where the image comes from.',
  },
)

export const CreateSandboxInput = requestObject(
  {
    name: Type.Optional(nullable(Type.String({ description: `The name: ${NAME_RULE}. Empty or absent: the slug.` }))),
    slug: Type.Optional(nullable(Type.String({ description: `The slug: ${SLUG_RULE}. Absent: one is generated.` }))),
    image: Type.Optional(ImageInput),
    source: Type.Optional(
      stringEnumSnakeOrPascal(['oci', 'disk_snapshot'], {
        description:
          '`oci` with `reference`: another spelling of `image`. `disk_snapshot` with `disk_snapshot_ref`: the image and the disk of a snapshot.',
      }),
    ),
    reference: Type.Optional(Type.String()),
    disk_snapshot_ref: Type.Optional(DiskSnapshotRef),
    pull_policy: Type.Optional(stringEnumSnakeOrPascal(PULL_POLICIES)),
    resources: Type.Optional(ResourcesInput),
    runtime: Type.Optional(RuntimeInput),
    env: Type.Optional(Type.Array(EnvVar, { maxItems: limits.ENV_MAX })),
    labels: Type.Optional(stringMap()),
    rlimits: Type.Optional(Type.Array(RlimitInput, { maxItems: limits.RLIMITS_MAX })),
    mounts: Type.Optional(Type.Array(MountInput, { maxItems: limits.MOUNTS_MAX })),
    patches: Type.Optional(Type.Array(PatchInput, { maxItems: limits.PATCHES_MAX })),
    network: Type.Optional(NetworkInput),
    init: Type.Optional(nullableComponent(InitInput)),
    security_profile: Type.Optional(stringEnumSnakeOrPascal(SECURITY_PROFILES)),
    lifecycle: Type.Optional(LifecycleInput),
    registry: Type.Optional(RegistryInput),
  },
  { title: 'CreateSandboxInput', description: 'The sandbox to create. Only an image is required.' },
)
export type CreateSandboxInput = Static<typeof CreateSandboxInput>
