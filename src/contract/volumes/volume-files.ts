import { Type } from 'typebox'
import { DateTime, requestObject, int64, stringEnum } from '../common.ts'
import { VOLUME_PATH_HEADER, VOLUME_RECURSIVE_HEADER } from './volume-headers.ts'

/** Files of volumes in requests and replies. Source: client traffic, section 2. */

export const VolumeFileReply = Type.Object(
  {
    path: Type.String({ description: "From the volume's root, with a leading slash." }),
    kind: stringEnum(['file', 'directory']),
    size: int64(),
    mode: int64({ description: '`st_mode`, type bits included.' }),
    uid: int64({ description: 'As a sandbox that mounts the volume sees it.' }),
    gid: int64(),
    readonly: Type.Boolean(),
    accessed_at: DateTime,
    modified_at: DateTime,
    created_at: DateTime,
  },
  { title: 'VolumeFile', description: 'A file or folder of a volume; a symlink shows as what it leads to.' },
)

export const VolumeFileList = Type.Object({ entries: Type.Array(VolumeFileReply) }, { title: 'VolumeFileList' })
export const VolumeFileStat = Type.Object({ metadata: VolumeFileReply }, { title: 'VolumeFileStat' })
export const VolumeFileExists = Type.Object({ exists: Type.Boolean() }, { title: 'VolumeFileExists' })

const path = Type.String({ description: "From the volume's root." })

export const MkdirInput = requestObject({ path }, { title: 'VolumeFolder' })
export const MoveInput = requestObject({ from: path, to: path }, { title: 'VolumeFileMove' })

export const VolumeFileParams = requestObject({
  id: Type.String({ description: "The volume's id, or `default` for the host volume." }),
})

const PATH_HEADER = Type.String({
  description: "The path from the volume's root, as base64url of UTF-8 without padding.",
})
export const PathHeaders = requestObject({ [VOLUME_PATH_HEADER]: PATH_HEADER })
export const RemoveHeaders = requestObject({
  [VOLUME_PATH_HEADER]: PATH_HEADER,
  [VOLUME_RECURSIVE_HEADER]: Type.Optional(
    stringEnum(['true', 'false'], { description: 'Whether a folder goes with all that is in it.' }),
  ),
})
