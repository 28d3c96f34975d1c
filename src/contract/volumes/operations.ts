import { Type } from 'typebox'
import {
  CAPACITY_MAX_GIB,
  VOLUME_KINDS,
  VOLUME_NAME_RULE,
  VOLUME_STATUSES,
  VOLUME_STORAGES,
} from '../../domain/volumes/volume.ts'
import {
  DateTime,
  int32,
  int64,
  MessageReply,
  nullable,
  requestObject,
  stringEnum,
  stringEnumSnakeOrPascal,
  stringMap,
  Uuid,
} from '../common.ts'
import { defineOperation, jsonReply, taggedReply, type Operation } from '../operation.ts'

/** Volumes in requests and replies. */

export const VolumeReply = Type.Object(
  {
    id: Uuid,
    kind: stringEnum(VOLUME_KINDS, {
      title: 'VolumeKind',
      description:
        "`host`: the organization's own volume, which always exists. `managed`: a volume that was created by name.",
    }),
    name: Type.Optional(nullable(Type.String({ description: 'Null for the default volume.' }))),
    status: stringEnum(VOLUME_STATUSES, {
      title: 'VolumeStatus',
      description: '`deleting`: no sandbox can mount the volume any more. It is deleted with its files.',
    }),
    storage: stringEnum(VOLUME_STORAGES, { title: 'VolumeType', description: 'How its files are stored.' }),
    labels: stringMap(),
    capacity_bytes: Type.Optional(
      nullable(
        int64({ description: 'The cap: the maximum size of its files. Null: the volume has no cap of its own.' }),
      ),
    ),
    used_bytes: Type.Optional(nullable(int64({ description: 'The size of its files. Null: not measured yet.' }))),
    created_at: DateTime,
    updated_at: DateTime,
  },
  { title: 'Volume', description: 'A volume: files that outlive sandboxes.' },
)

export const VolumeList = Type.Array(VolumeReply)

const capacity = Type.Optional(
  nullable(
    int32({
      minimum: 1,
      maximum: CAPACITY_MAX_GIB,
      description: "The cap: the maximum size of the volume's files, in GiB. At most the organization's storage limit.",
    }),
  ),
)

export const CreateVolumeInput = requestObject(
  {
    name: Type.String({ description: `Unique in the organization: ${VOLUME_NAME_RULE}.` }),
    labels: Type.Optional(nullable(stringMap())),
    capacity_gib: capacity,
    storage: Type.Optional(nullable(stringEnumSnakeOrPascal(VOLUME_STORAGES))),
  },
  { title: 'CreateVolume', description: 'A volume to create.' },
)

export const UpdateVolumeInput = requestObject(
  { capacity_gib: capacity, labels: Type.Optional(nullable(stringMap())) },
  {
    title: 'VolumePatch',
    description:
      'What to change. A field that is absent keeps its value. A `capacity_gib` of null removes the cap. `labels` replace all existing labels.',
  },
)

export const VolumeIdParams = requestObject({ id: Uuid })

const VOLUME = taggedReply(VolumeReply, 'The volume as it is now.')

/** The operations on volumes. */
export const VOLUME_OPERATIONS = {
  list_volumes: defineOperation({
    id: 'list_volumes',
    method: 'GET',
    path: '/v1/volumes',
    tag: 'Volumes',
    summary: 'List volumes: first the default volume, then the others from the oldest to the newest',
    reply: jsonReply(VolumeList, 'All volumes of the organization.'),
  }),
  create_volume: defineOperation({
    id: 'create_volume',
    method: 'POST',
    isResumable: true,
    path: '/v1/volumes',
    tag: 'Volumes',
    summary: 'Create a named volume',
    body: CreateVolumeInput,
    reply: VOLUME,
    problems: ['volume_already_exists', 'quota_exceeded'],
  }),
  get_default_volume: defineOperation({
    id: 'get_default_volume',
    method: 'GET',
    path: '/v1/volumes/default',
    tag: 'Volumes',
    summary: 'Get the default volume of the organization',
    reply: VOLUME,
    problems: ['volume_not_found'],
  }),
  get_volume: defineOperation({
    id: 'get_volume',
    method: 'GET',
    path: '/v1/volumes/{id}',
    tag: 'Volumes',
    summary: 'Get a volume',
    params: VolumeIdParams,
    reply: VOLUME,
    problems: ['volume_not_found'],
  }),
  update_volume: defineOperation({
    id: 'update_volume',
    method: 'PATCH',
    checksIfMatch: true,
    path: '/v1/volumes/{id}',
    tag: 'Volumes',
    summary: "Set or clear a volume's cap, or replace its labels",
    description:
      'A changed cap takes effect within moments, even while sandboxes write. The default volume has no cap.',
    params: VolumeIdParams,
    body: UpdateVolumeInput,
    reply: VOLUME,
    problems: ['volume_not_found', 'invalid_state_transition', 'default_volume_protected'],
  }),
  delete_volume: defineOperation({
    id: 'delete_volume',
    method: 'DELETE',
    checksIfMatch: true,
    path: '/v1/volumes/{id}',
    tag: 'Volumes',
    summary: 'Schedule a volume for deletion',
    description:
      'The volume can not be mounted any more. A little later it is deleted with its files, and its name becomes free. Deleting it again succeeds.',
    params: VolumeIdParams,
    reply: jsonReply(MessageReply, 'The volume is scheduled for deletion.'),
    problems: ['volume_not_found', 'volume_in_use', 'default_volume_protected'],
  }),
} as const satisfies Record<string, Operation>
