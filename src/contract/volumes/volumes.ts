import { Type } from 'typebox'
import {
  CAPACITY_MAX_GIB, VOLUME_KINDS, VOLUME_NAME_RULE, VOLUME_STATUSES, VOLUME_STORAGES,
} from '../../domain/volumes/volume.ts' // prettier-ignore
import {
  DateTime,
  requestObject,
  int32,
  int64,
  stringEnum,
  stringEnumEitherCase,
  nullable,
  stringMap,
  Uuid,
} from '../common.ts'

/** Volumes in requests and replies. Source: openapi.json (`VolumeResponse`, `CreateVolumeRequest`, `UpdateVolumeRequest`). */

export const VolumeReply = Type.Object(
  {
    id: Uuid,
    kind: stringEnum(VOLUME_KINDS, {
      title: 'VolumeKind',
      description: "`host`: the organization's own, which is always there; `managed`: one that was created by name.",
    }),
    name: Type.Optional(nullable(Type.String({ description: 'Null for the host volume.' }))),
    status: stringEnum(VOLUME_STATUSES, {
      title: 'VolumeStatus',
      description: '`deleting`: it can be mounted no more, and goes with all that is in it.',
    }),
    storage: stringEnum(VOLUME_STORAGES, { title: 'VolumeType', description: 'How its files are kept.' }),
    labels: stringMap(),
    capacity_bytes: Type.Optional(
      nullable(int64({ description: 'The most that it may hold; null: no cap of its own.' })),
    ),
    used_bytes: Type.Optional(nullable(int64({ description: 'What it takes; null while that is not known yet.' }))),
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
      description: "The most that the volume may hold, in GiB; at most the organization's storage limit.",
    }),
  ),
)

export const CreateVolumeInput = requestObject(
  {
    name: Type.String({ description: `Unique in the organization: ${VOLUME_NAME_RULE}.` }),
    labels: Type.Optional(nullable(stringMap())),
    capacity_gib: capacity,
    storage: Type.Optional(nullable(stringEnumEitherCase(VOLUME_STORAGES))),
  },
  { title: 'CreateVolume', description: 'A volume to create.' },
)

export const UpdateVolumeInput = requestObject(
  { capacity_gib: capacity, labels: Type.Optional(nullable(stringMap())) },
  {
    title: 'VolumePatch',
    description:
      'What to change. A field that is absent stays as it is; a `capacity_gib` of null takes the cap away; `labels` replace all that there are.',
  },
)

export const VolumeIdParams = requestObject({ id: Uuid })
