import { snakeCase } from '../casing.ts'
import { GUEST_PATH_RULE, normalizeGuestPath } from './guest-path.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import {
  DISK_IMAGE_FORMATS,
  HOST_PERMISSIONS,
  STAT_VIRTUALIZATIONS,
  type Mount,
  type MountOptions,
  type NamedMount,
} from './spec.ts'
import type { MountInput, MountOptionsInput, ShareInput } from './spec-input.ts'
import { parseVolumePath } from '../volumes/volume-path.ts'

/**
 * Fills in the defaults of mounts. Keeps the order of the request, so that a refusal numbers mounts as the client does.
 */
export function normalizeMounts(inputs: readonly MountInput[], refuse: Refuse): readonly Mount[] {
  const taken = new Set<string>()
  return inputs.map((input, index) => {
    const at = `mounts[${String(index)}]`
    const guest = normalizeGuestPath(input.guest)
    if (guest === null || guest === '/') {
      const accepted = `${GUEST_PATH_RULE} and is not / itself`
      refuse({ code: 'invalid_request', field: `${at}.guest`, seen: describeSeen(input.guest), accepted })
    } else if (taken.has(guest)) {
      const accepted = 'one mount for each path'
      refuse({ code: 'invalid_request', field: `${at}.guest`, seen: `${guest} a second time`, accepted })
    }
    taken.add(guest ?? '/')
    return normalizeMount(input, guest ?? '/', { path: at, refuse })
  })
}

type Share = Pick<NamedMount, 'stat_virtualization' | 'host_permissions'>

type FieldContext = { readonly path: string; readonly refuse: Refuse }

function normalizeMount(input: MountInput, guest: string, context: FieldContext): Mount {
  const options = normalizeOptions(input.options ?? {})
  switch (input.type) {
    case 'bind':
    case 'Bind':
      checkHostPath(input.host, context)
      return {
        type: 'bind',
        host: input.host,
        guest,
        options,
        ...share(input),
        quota_mib: checkSize(input.quota_mib ?? null, 'quota_mib', context),
      }
    case 'named':
    case 'Named':
      if (input.name === '') {
        context.refuse({
          code: 'invalid_request',
          field: `${context.path}.name`,
          seen: '""',
          accepted: 'the name of a volume',
        })
      }
      return { type: 'named', name: input.name, guest, options, ...share(input) }
    case 'tmpfs':
    case 'Tmpfs':
      return { type: 'tmpfs', guest, options, size_mib: checkSize(input.size_mib ?? null, 'size_mib', context) }
    case 'disk_image':
    case 'DiskImage':
      checkHostPath(input.host, context)
      return {
        type: 'disk_image',
        host: input.host,
        guest,
        format: snakeCase(DISK_IMAGE_FORMATS, input.format),
        fstype: input.fstype ?? null,
        options,
      }
  }
}

function normalizeOptions(input: MountOptionsInput): MountOptions {
  return {
    readonly: input.readonly ?? false,
    noexec: input.noexec ?? false,
    nosuid: input.nosuid ?? false,
    nodev: input.nodev ?? false,
  }
}

function share({ stat_virtualization, host_permissions }: ShareInput): Share {
  return {
    stat_virtualization: snakeCase(STAT_VIRTUALIZATIONS, stat_virtualization ?? 'strict'),
    host_permissions: snakeCase(HOST_PERMISSIONS, host_permissions ?? 'private'),
  }
}

function checkHostPath(host: string, { path, refuse }: FieldContext): void {
  const parsed = host === '' ? { refused: 'a path is not empty' } : parseVolumePath(host)
  if (!('refused' in parsed)) return
  const accepted = `a path on the organization's default volume: ${parsed.refused}`
  refuse({ code: 'invalid_request', field: `${path}.host`, seen: describeSeen(host), accepted })
}

/** Refuses a size of 0, because the kernel interprets it as "no limit". */
function checkSize(sizeMib: number | null, key: string, { path, refuse }: FieldContext): number | null {
  if (sizeMib === 0)
    refuse({ code: 'invalid_request', field: `${path}.${key}`, seen: '0', accepted: 'at least 1, or null' })
  return sizeMib
}
