import { MessageReply } from '../common.ts'
import { jsonReply, taggedReply, defineOperation, type Operation } from '../operation.ts'
import { CreateVolumeInput, UpdateVolumeInput, VolumeIdParams, VolumeList, VolumeReply } from './volumes.ts'

const VOLUME = taggedReply(VolumeReply, 'The volume as it is now.')

/** Volumes. Source: service description 4.9; openapi.json; client traffic, section 2. */
export const VOLUME_OPERATIONS = {
  list_volumes: defineOperation({
    id: 'list_volumes',
    method: 'GET',
    path: '/v1/volumes',
    tag: 'Volumes',
    summary: 'List volumes, the host volume first, then the oldest',
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
    problems: ['name_already_exists', 'quota_exceeded'],
  }),
  get_default_volume: defineOperation({
    id: 'get_default_volume',
    method: 'GET',
    path: '/v1/volumes/default',
    tag: 'Volumes',
    summary: 'Get the host volume of the organization',
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
    description: 'A cap holds from the next moments on, while sandboxes write. The host volume has none.',
    params: VolumeIdParams,
    body: UpdateVolumeInput,
    reply: VOLUME,
    problems: ['sandbox_not_found', 'invalid_state_transition', 'host_volume_stays'],
  }),
  delete_volume: defineOperation({
    id: 'delete_volume',
    method: 'DELETE',
    checksIfMatch: true,
    path: '/v1/volumes/{id}',
    tag: 'Volumes',
    summary: 'Schedule a volume for deletion',
    description:
      'From then on it can be mounted no more; it goes with all that is in it a little later, and its name is free then. Repeating it succeeds.',
    params: VolumeIdParams,
    reply: jsonReply(MessageReply, 'The volume is to be deleted.'),
    problems: ['sandbox_not_found', 'volume_in_use', 'host_volume_stays'],
  }),
} as const satisfies Record<string, Operation>
