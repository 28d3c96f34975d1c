import { Type } from 'typebox'
import { FILE_MODE_MAX } from '../../domain/requests/request-bounds.ts'
import { requestObject, int32, stringEnumEitherCase, nullable, taggedUnion } from '../common.ts'

const path = Type.String({ description: 'An absolute path in the sandbox.' })
const mode = Type.Optional(
  nullable(int32({ maximum: FILE_MODE_MAX, description: 'Permissions as a number, such as 420 for 0o644.' })),
)
const replace = Type.Optional(Type.Boolean({ default: false, description: 'Whether what is there may be replaced.' }))
const src = Type.String({ description: "A path on the organization's default volume." })
const bytes = Type.Array(int32({ maximum: 255 }), { description: 'Bytes as numbers.' })

/** A change to the root file system before the start. Source: the published description and the recorded traffic. */
export const PatchInput = taggedUnion(
  'type',
  [
    requestObject({ type: stringEnumEitherCase(['text']), path, content: Type.String(), mode, replace }),
    requestObject({ type: stringEnumEitherCase(['file']), path, content: bytes, mode, replace }),
    requestObject({ type: stringEnumEitherCase(['copy_file']), src, dst: path, mode, replace }),
    requestObject({ type: stringEnumEitherCase(['copy_dir']), src, dst: path, replace }),
    requestObject({ type: stringEnumEitherCase(['symlink']), target: Type.String(), link: path, replace }),
    requestObject({ type: stringEnumEitherCase(['mkdir']), path, mode }),
    requestObject({ type: stringEnumEitherCase(['remove']), path }),
    requestObject({ type: stringEnumEitherCase(['append']), path, content: Type.String() }),
  ],
  { title: 'PatchInput', description: 'A change to the root file system before the start.' },
)
