import { Type } from 'typebox'
import { DISK_IMAGE_FORMATS, HOST_PERMISSIONS, STAT_VIRTUALIZATIONS } from '../../domain/spec/spec.ts'
import { input, int32, oneOfEither, orNull, variants } from '../common.ts'

const MountOptionsInput = input(
  {
    readonly: Type.Optional(Type.Boolean({ default: false })),
    noexec: Type.Optional(Type.Boolean({ default: false })),
    nosuid: Type.Optional(Type.Boolean({ default: false })),
    nodev: Type.Optional(Type.Boolean({ default: false })),
  },
  { title: 'MountOptionsInput', description: 'What is to be impossible on a mount.' },
)

const place = {
  guest: Type.String({ description: 'An absolute path in the sandbox.' }),
  options: Type.Optional(MountOptionsInput),
}
const share = {
  stat_virtualization: Type.Optional(oneOfEither(STAT_VIRTUALIZATIONS)),
  host_permissions: Type.Optional(oneOfEither(HOST_PERMISSIONS)),
}
const host = Type.String({ description: "A path on the organization's default volume." })

/** Something to mount in the sandbox. Source: the published description and the recorded traffic. */
export const MountInput = variants(
  'type',
  [
    input({ type: oneOfEither(['bind']), host, ...place, ...share, quota_mib: Type.Optional(orNull(int32())) }),
    input({ type: oneOfEither(['named']), name: Type.String(), ...place, ...share }),
    input({ type: oneOfEither(['tmpfs']), ...place, size_mib: Type.Optional(orNull(int32())) }),
    input({
      type: oneOfEither(['disk_image']),
      host,
      ...place,
      format: oneOfEither(DISK_IMAGE_FORMATS),
      fstype: Type.Optional(orNull(Type.String())),
    }),
  ],
  { title: 'MountInput', description: 'Something to mount in the sandbox.' },
)
