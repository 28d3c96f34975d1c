import { posix } from 'node:path'
import type { BindMount, NamedMount, TmpfsMount } from '../../../../domain/spec/spec.ts'
import { parseVolumePath } from '../../../../domain/volumes/volume-path.ts'
import { StartError } from '../../../start-error.ts'

/** The folder of the worker's own files in a sandbox. */
const OWN_FOLDER = '/.msb'

/** Where a mount is in the sandbox. Throws `StartError` of reason `config` for a mount that a Pod can't have. */
export function mountPathOf({ guest, options }: BindMount | NamedMount | TmpfsMount, field: string): string {
  const path = posix.normalize(guest)
  if (options.noexec) throw new StartError('config', `${field}.noexec: a mount in a Pod always allows to execute files`)
  if (path === '/' || path === OWN_FOLDER || path.startsWith(`${OWN_FOLDER}/`))
    throw new StartError('config', `${field}.guest '${guest}': nothing can be mounted there`)
  return path
}

/** The path of a bind mount beneath the root of the default volume, without a slash in front. Empty: the root. Throws `StartError`. */
export function bindSubPath({ host }: BindMount, field: string): string {
  const parsed = parseVolumePath(host)
  if ('refused' in parsed) throw new StartError('mount', `${field}.host '${host}': ${parsed.refused}`)
  return parsed.names.join('/')
}
