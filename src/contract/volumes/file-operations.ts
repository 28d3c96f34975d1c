import { Type } from 'typebox'
import { DateTime, int64, MessageReply, requestObject, stringEnum } from '../common.ts'
import { VOLUME_PATH_HEADER, VOLUME_RECURSIVE_HEADER } from './volume-protocol.ts'
import { defineOperation, jsonReply, type Operation } from '../operation.ts'

/** Files of volumes in requests and replies. */

export const VolumeFileReply = Type.Object(
  {
    path: Type.String({ description: "The path from the volume's root, with a leading slash." }),
    kind: stringEnum(['file', 'directory']),
    size: int64(),
    mode: int64({ description: '`st_mode`, type bits included.' }),
    uid: int64({ description: 'The user id that a sandbox sees when it mounts the volume.' }),
    gid: int64(),
    readonly: Type.Boolean(),
    accessed_at: DateTime,
    modified_at: DateTime,
    created_at: DateTime,
  },
  { title: 'VolumeFile', description: 'A file or folder of a volume. A symlink shows as its target.' },
)

export const VolumeFileList = Type.Object(
  { entries: Type.Array(VolumeFileReply) },
  { title: 'VolumeFileList', description: 'The content of a folder.' },
)
export const VolumeFileStat = Type.Object(
  { metadata: VolumeFileReply },
  { title: 'VolumeFileStat', description: 'A file or folder.' },
)
export const VolumeFileExists = Type.Object(
  { exists: Type.Boolean() },
  { title: 'VolumeFileExists', description: 'Whether something is at a path.' },
)

const path = Type.String({ description: "The path from the volume's root." })

export const MkdirInput = requestObject({ path }, { title: 'VolumeFolder', description: 'A folder to create.' })
export const MoveInput = requestObject(
  { from: path, to: path },
  { title: 'VolumeFileMove', description: 'Where to copy or move from, and to.' },
)

export const VolumeFileParams = requestObject({
  id: Type.String({ description: "The volume's id, or `default` for the default volume." }),
})

const PATH_HEADER = Type.String({
  description: "The path from the volume's root, in UTF-8 as base64url without padding.",
})
export const VolumePathHeaders = requestObject({ [VOLUME_PATH_HEADER]: PATH_HEADER })
export const RemoveHeaders = requestObject({
  [VOLUME_PATH_HEADER]: PATH_HEADER,
  [VOLUME_RECURSIVE_HEADER]: Type.Optional(
    stringEnum(['true', 'false'], { description: 'Whether to remove a folder with everything in it.' }),
  ),
})

const FILES = '/v1/volumes/{id}/files'
const common = { tag: 'Volume files', params: VolumeFileParams }
const READ_PROBLEMS = [
  'invalid_volume_path', 'volume_not_found', 'volume_file_not_found', 'volume_file_conflict', 'invalid_state_transition',
] as const // prettier-ignore
const WRITE_PROBLEMS = [...READ_PROBLEMS, 'quota_exceeded'] as const

/** The operations on the files of volumes. They work whether or not a sandbox mounts the volume. */
export const VOLUME_FILE_OPERATIONS = {
  list_volume_files: defineOperation({
    ...common,
    id: 'list_volume_files',
    method: 'GET',
    path: FILES,
    summary: 'List a folder of a volume',
    headers: VolumePathHeaders,
    reply: jsonReply(VolumeFileList, 'The files and folders in it, sorted by path.'),
    problems: READ_PROBLEMS,
  }),
  stat_volume_file: defineOperation({
    ...common,
    id: 'stat_volume_file',
    method: 'GET',
    path: `${FILES}/stat`,
    summary: 'Get the metadata of a file or folder of a volume',
    headers: VolumePathHeaders,
    reply: jsonReply(VolumeFileStat, 'Its metadata.'),
    problems: READ_PROBLEMS,
  }),
  volume_file_exists: defineOperation({
    ...common,
    id: 'volume_file_exists',
    method: 'GET',
    path: `${FILES}/exists`,
    summary: 'Check whether a file or folder of a volume exists',
    headers: VolumePathHeaders,
    reply: jsonReply(VolumeFileExists, 'Whether it exists.'),
    problems: READ_PROBLEMS,
  }),
  read_volume_file: defineOperation({
    ...common,
    id: 'read_volume_file',
    method: 'GET',
    path: `${FILES}/content`,
    summary: 'Read a file of a volume',
    headers: VolumePathHeaders,
    reply: { kind: 'bytes', status: 200, description: 'Its content, streamed.' },
    problems: READ_PROBLEMS,
  }),
  write_volume_file: defineOperation({
    ...common,
    id: 'write_volume_file',
    method: 'PUT',
    path: `${FILES}/content`,
    summary: 'Write a file of a volume',
    description:
      'The body is streamed and may have any length. Without a body, the file is empty. The file is replaced at once when all of it has arrived. Missing folders are created.',
    headers: VolumePathHeaders,
    takes: 'bytes',
    reply: jsonReply(MessageReply, 'The file is written.'),
    problems: WRITE_PROBLEMS,
  }),
  make_volume_folder: defineOperation({
    ...common,
    id: 'make_volume_folder',
    method: 'POST',
    isResumable: true, // a repeated create of a folder changes nothing
    path: `${FILES}/mkdir`,
    summary: 'Create a folder in a volume, with those above it',
    body: MkdirInput,
    reply: jsonReply(MessageReply, 'The folder exists.'),
    problems: WRITE_PROBLEMS,
  }),
  copy_volume_file: defineOperation({
    ...common,
    id: 'copy_volume_file',
    method: 'POST',
    path: `${FILES}/copy`,
    summary: 'Copy a file or folder within a volume',
    body: MoveInput,
    reply: jsonReply(MessageReply, 'The copy exists.'),
    problems: WRITE_PROBLEMS,
  }),
  rename_volume_file: defineOperation({
    ...common,
    id: 'rename_volume_file',
    method: 'POST',
    path: `${FILES}/rename`,
    summary: 'Move a file or folder within a volume',
    body: MoveInput,
    reply: jsonReply(MessageReply, 'It is moved.'),
    problems: WRITE_PROBLEMS,
  }),
  remove_volume_file: defineOperation({
    ...common,
    id: 'remove_volume_file',
    method: 'DELETE',
    path: FILES,
    summary: 'Remove a file of a volume, or a folder with everything in it',
    headers: RemoveHeaders,
    reply: jsonReply(MessageReply, 'It is removed.'),
    problems: WRITE_PROBLEMS,
  }),
} as const satisfies Record<string, Operation>
