import { Type } from 'typebox'
import { FILE_MODE_MAX } from '../../domain/orgs/limits.ts'
import { input, int32, oneOfEither, orNull, variants } from '../common.ts'

const path = Type.String({ description: 'An absolute path in the sandbox.' })
const mode = Type.Optional(
  orNull(int32({ maximum: FILE_MODE_MAX, description: 'Permissions as a number, such as 420 for 0o644.' })),
)
const replace = Type.Optional(Type.Boolean({ default: false, description: 'Whether what is there may be replaced.' }))
const src = Type.String({ description: "A path on the organization's default volume." })
const bytes = Type.Array(int32({ maximum: 255 }), { description: 'Bytes as numbers.' })

/** A change to the root file system before the start. Source: the published description and the recorded traffic. */
export const PatchInput = variants(
  'type',
  [
    input({ type: oneOfEither(['text']), path, content: Type.String(), mode, replace }),
    input({ type: oneOfEither(['file']), path, content: bytes, mode, replace }),
    input({ type: oneOfEither(['copy_file']), src, dst: path, mode, replace }),
    input({ type: oneOfEither(['copy_dir']), src, dst: path, replace }),
    input({ type: oneOfEither(['symlink']), target: Type.String(), link: path, replace }),
    input({ type: oneOfEither(['mkdir']), path, mode }),
    input({ type: oneOfEither(['remove']), path }),
    input({ type: oneOfEither(['append']), path, content: Type.String() }),
  ],
  { title: 'PatchInput', description: 'A change to the root file system before the start.' },
)
