import { Type } from 'typebox'
import { DISK_IMAGE_FORMATS, HOST_PERMISSIONS, STAT_VIRTUALIZATIONS } from '../../domain/spec/spec.ts'
import { requestObject, int32, stringEnumEitherCase, nullable, taggedUnion } from '../common.ts'

const MountOptionsInput = requestObject(
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
  stat_virtualization: Type.Optional(stringEnumEitherCase(STAT_VIRTUALIZATIONS)),
  host_permissions: Type.Optional(stringEnumEitherCase(HOST_PERMISSIONS)),
}
const host = Type.String({ description: "A path on the organization's default volume." })

/** Something to mount in the sandbox. Source: the published description and the recorded traffic. */
export const MountInput = taggedUnion(
  'type',
  [
    requestObject({
      type: stringEnumEitherCase(['bind']),
      host,
      ...place,
      ...share,
      quota_mib: Type.Optional(nullable(int32())),
    }),
    requestObject({ type: stringEnumEitherCase(['named']), name: Type.String(), ...place, ...share }),
    requestObject({ type: stringEnumEitherCase(['tmpfs']), ...place, size_mib: Type.Optional(nullable(int32())) }),
    requestObject({
      type: stringEnumEitherCase(['disk_image']),
      host,
      ...place,
      format: stringEnumEitherCase(DISK_IMAGE_FORMATS),
      fstype: Type.Optional(nullable(Type.String())),
    }),
  ],
  { title: 'MountInput', description: 'Something to mount in the sandbox.' },
)
