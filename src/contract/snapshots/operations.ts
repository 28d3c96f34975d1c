import { Type } from 'typebox'
import { FORKS_MAX } from '../../domain/snapshots/fork.ts'
import { SNAPSHOT_NAME_RULE, SNAPSHOT_STATUSES } from '../../domain/snapshots/snapshot.ts'
import {
  DateTime,
  int32,
  int64,
  MessageReply,
  nullable,
  nullableComponent,
  pageOf,
  pageQuery,
  requestObject,
  stringEnum,
  stringMap,
  Uuid,
} from '../common.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'
import { SandboxIdParams, SandboxReply } from '../sandboxes/sandboxes.ts'

/** Snapshots and forks in requests and replies. */

const Kind = stringEnum(['disk'], { title: 'SnapshotKind', description: 'What a snapshot has: the disk of a sandbox.' })
const Digest = Type.String({ pattern: '^sha256:[0-9a-f]{64}$', description: '`sha256:` and 64 hexadecimal digits.' })

const Location = Type.Object(
  { type: stringEnum(['managed'], { description: 'Where the data is: with a worker.' }), id: Uuid },
  { title: 'SnapshotLocation', description: 'Where a snapshot is.' },
)

const Manifest = Type.Object(
  {
    schema: int32({ description: 'The version of the manifest.' }),
    artifact: stringEnum(['snapshot'], { description: 'What the manifest describes.' }),
    scope: Kind,
    created_at: DateTime,
    parent: nullable(Type.String({ description: 'The digest of the snapshot that it builds on. Null: none.' })),
    image: Type.Object(
      {
        ref: Type.String({ description: 'The reference of the image.' }),
        manifest_digest: Digest,
      },
      { title: 'SnapshotImage', description: 'The image that the disk was made over.' },
    ),
    source_sandbox: nullable(Type.String({ description: 'The name that the sandbox had.' })),
    state: Type.Object(
      {
        kind: stringEnum(['file'], { description: 'How the state is stored.' }),
        format: stringEnum(['raw'], { description: 'The format of the disk.' }),
        fstype: Type.String({ description: 'The file system of the disk.' }),
        upper: Type.Object(
          {
            file: Type.String({ description: 'The name of the file with the disk.' }),
            size_bytes: int64({ description: 'The size of the disk as sandboxes see it.' }),
            integrity: nullableComponent(
              Type.Object(
                { algorithm: stringEnum(['sha256'], { description: 'How the hash was computed.' }), digest: Digest },
                { title: 'SnapshotIntegrity', description: 'The hash of the disk.' },
              ),
            ),
          },
          { title: 'SnapshotUpper', description: 'The disk.' },
        ),
      },
      { title: 'SnapshotState', description: 'What the snapshot has.' },
    ),
    labels: stringMap(),
    extensions: stringMap({ description: 'Always empty.' }),
    requires: Type.Array(Type.String(), { description: 'Always empty.' }),
  },
  { title: 'SnapshotManifest', description: 'The description of a snapshot. Its hash is the digest of the snapshot.' },
)

export const SnapshotReply = Type.Object(
  {
    kind: Kind,
    name: Type.String({ description: 'Unique in the organization.' }),
    location: Location,
    sandbox_id: Uuid,
    digest: Digest,
    size_bytes: int64({ description: 'What the snapshot takes of the disk of its worker.' }),
    manifest: Manifest,
    labels: stringMap(),
    created_at: DateTime,
  },
  { title: 'Snapshot', description: 'A copy of the disk of a sandbox, from which sandboxes can be created.' },
)

export const SnapshotPage = pageOf(SnapshotReply, 'SnapshotPage')

export const OperationReply = Type.Object(
  {
    id: Uuid,
    kind: Kind,
    status: stringEnum(SNAPSHOT_STATUSES, {
      title: 'SnapshotOperationStatus',
      description: '`succeeded`: `result` has the snapshot. `failed`: `error` says why there is none.',
    }),
    result: Type.Optional(SnapshotReply),
    error: Type.Optional(
      Type.Object(
        {
          code: Type.String({ description: 'A code for programs.' }),
          message: Type.String({ description: 'A sentence for people.' }),
        },
        { title: 'SnapshotError', description: 'Why a snapshot could not be made.' },
      ),
    ),
    created_at: DateTime,
    updated_at: DateTime,
    completed_at: Type.Optional(DateTime),
  },
  { title: 'SnapshotOperation', description: 'The making of a snapshot.' },
)

export const CreateSnapshotInput = requestObject(
  {
    kind: Kind,
    sandbox_id: Uuid,
    name: Type.String({ description: `Unique in the organization: ${SNAPSHOT_NAME_RULE}.` }),
    labels: Type.Optional(stringMap()),
    force: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Whether it replaces a snapshot of that name, once it is complete.',
      }),
    ),
    record_integrity: Type.Optional(
      Type.Boolean({ default: false, description: 'Whether the manifest gets the hash of the disk.' }),
    ),
    dest_dir: Type.Optional(
      nullable(Type.String({ description: 'Not supported: snapshots are in managed storage. Only null is accepted.' })),
    ),
  },
  { title: 'CreateSnapshotInput', description: 'The snapshot to make.' },
)

export const ForkInput = requestObject(
  {
    count: Type.Optional(
      int32({ minimum: 1, maximum: FORKS_MAX, default: 1, description: 'How many copies to make.' }),
    ),
    name: Type.Optional(
      nullable(
        Type.String({
          description:
            'The name of the copy. With more than one, each gets it with a hyphen and its number. Absent: names are generated.',
        }),
      ),
    ),
  },
  { title: 'ForkInput', description: 'The copies to make.' },
)

export const ForkReply = Type.Object(
  { data: Type.Array(SandboxReply) },
  { title: 'Forks', description: 'The new sandboxes.' },
)

export const SnapshotIdParams = requestObject({ snapshot_id: Uuid })
export const SnapshotNameParams = requestObject({ name: Type.String({ description: 'The name of the snapshot.' }) })
export const SnapshotOperationParams = requestObject({ operation_id: Uuid })

const OPERATION = jsonReply(OperationReply, 'The operation as it is now.')
const SNAPSHOT = jsonReply(SnapshotReply, 'The snapshot.')
const DELETED = jsonReply(MessageReply, 'The snapshot is deleted.')
const DELETE_DESCRIPTION = 'Sandboxes that were created from the snapshot live on.'

/** The operations on snapshots, and forks. */
export const SNAPSHOT_OPERATIONS = {
  create_snapshot: defineOperation({
    id: 'create_snapshot',
    method: 'POST',
    isResumable: true,
    path: '/v1/snapshots',
    tag: 'Snapshots',
    summary: "Make a snapshot of a sandbox's disk",
    description:
      'Replies at once. Ask for the operation until it has ended. A running sandbox goes on; its writes wait for moments while the disk is copied.',
    body: CreateSnapshotInput,
    reply: OPERATION,
    problems: ['sandbox_not_found', 'invalid_state_transition', 'snapshot_name_already_exists', 'quota_exceeded'],
  }),
  get_snapshot_operation: defineOperation({
    id: 'get_snapshot_operation',
    method: 'GET',
    path: '/v1/snapshot-operations/{operation_id}',
    tag: 'Snapshots',
    summary: 'Get the operation that makes a snapshot',
    params: SnapshotOperationParams,
    reply: OPERATION,
    problems: ['snapshot_operation_not_found'],
  }),
  list_snapshots: defineOperation({
    id: 'list_snapshots',
    method: 'GET',
    path: '/v1/snapshots',
    tag: 'Snapshots',
    summary: 'List snapshots, the newest first',
    query: requestObject(pageQuery),
    reply: jsonReply(SnapshotPage, 'A page of snapshots.'),
  }),
  get_snapshot: defineOperation({
    id: 'get_snapshot',
    method: 'GET',
    path: '/v1/snapshots/{snapshot_id}',
    tag: 'Snapshots',
    summary: 'Get a snapshot',
    params: SnapshotIdParams,
    reply: SNAPSHOT,
    problems: ['snapshot_not_found'],
  }),
  get_snapshot_by_name: defineOperation({
    id: 'get_snapshot_by_name',
    method: 'GET',
    path: '/v1/snapshots/by-name/{name}',
    tag: 'Snapshots',
    summary: 'Get a snapshot by its name',
    params: SnapshotNameParams,
    reply: SNAPSHOT,
    problems: ['snapshot_not_found'],
  }),
  delete_snapshot: defineOperation({
    id: 'delete_snapshot',
    method: 'DELETE',
    path: '/v1/snapshots/{snapshot_id}',
    tag: 'Snapshots',
    summary: 'Delete a snapshot',
    description: DELETE_DESCRIPTION,
    params: SnapshotIdParams,
    reply: DELETED,
    problems: ['snapshot_not_found'],
  }),
  delete_snapshot_by_name: defineOperation({
    id: 'delete_snapshot_by_name',
    method: 'DELETE',
    path: '/v1/snapshots/by-name/{name}',
    tag: 'Snapshots',
    summary: 'Delete a snapshot, found by its name',
    description: DELETE_DESCRIPTION,
    params: SnapshotNameParams,
    reply: DELETED,
    problems: ['snapshot_not_found'],
  }),
  fork_sandbox: defineOperation({
    id: 'fork_sandbox',
    method: 'POST',
    path: '/v1/sandboxes/{sandbox_id}/fork',
    tag: 'Sandboxes',
    summary: 'Create copies of a sandbox, each with a copy of its disk',
    description:
      'The copies have the specification of the sandbox and its disk of this moment. They start if the sandbox runs. Processes are not copied, so each copy starts its workload anew.',
    params: SandboxIdParams,
    body: ForkInput,
    reply: jsonReply(ForkReply, 'The copies, in the order of their names.'),
    problems: [
      'sandbox_not_found', 'invalid_state_transition', 'invalid_sandbox_config', 'name_already_exists', 'quota_exceeded', 'org_suspended',
    ], // prettier-ignore
  }),
} as const satisfies Record<string, Operation>
