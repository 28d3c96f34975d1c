import { hasErrorCode } from '../../../../lib/error-code.ts'
import { SANDBOX_IDS } from '../../../../domain/workers/id-range.ts'
import { PathInRootError, readInRoot } from '../../shared/resolve-in-root.ts'

/** The user that a process in the sandbox runs as. */
export type SandboxUser = {
  readonly uid: number
  readonly gid: number
  readonly additionalGids: readonly number[]
  readonly home: string
}

/** The user of processes that no image and no spec gives one. */
export const ROOT_USER: SandboxUser = { uid: 0, gid: 0, additionalGids: [], home: '/root' }

/** The contents of a sandbox's `/etc/passwd` and `/etc/group`; empty when missing. */
type UserFiles = { readonly passwd: string; readonly group: string }

/** How much is read of a user file, which the sandbox writes and each command reads. Entries beyond it are not known. */
const USER_FILE_LIMIT_BYTES = 256 * 1024

type FilesRoot = { readonly root: string; readonly isFresh: boolean }

/** Reads the user files in a sandbox's root. No symlink leads the read out of that root. */
export async function readUserFiles(from: FilesRoot): Promise<UserFiles> {
  const [passwd, group] = await Promise.all([readBounded(from, '/etc/passwd'), readBounded(from, '/etc/group')])
  return { passwd, group }
}

/**
 * Resolves `name`, `uid`, `name:group` or `uid:gid`; null means user 0. A number needs no entry in the files. Returns an error
 * message if a name is unknown or a number is outside the sandbox's user namespace.
 */
export function resolveUser(requested: string | null, files: UserFiles): SandboxUser | string {
  const [userPart = '', groupPart] = (requested === null || requested === '' ? '0' : requested).split(':', 2)
  const entry = findEntry(files.passwd, isNumber(userPart) ? 2 : 0, userPart)
  if (entry === undefined && !isNumber(userPart)) return `user '${userPart}' is not in the image's /etc/passwd`
  const uid = Number(entry?.[2] ?? userPart)
  const groupEntry = groupPart === undefined ? undefined : findEntry(files.group, 0, groupPart)
  if (groupPart !== undefined && !isNumber(groupPart) && groupEntry === undefined)
    return `group '${groupPart}' is not in the image's /etc/group`
  const gid = groupPart === undefined ? Number(entry?.[3] ?? 0) : Number(groupEntry?.[2] ?? groupPart)
  const name = entry?.[0]
  const additionalGids = groupPart === undefined && name !== undefined ? groupsOf(files.group, name) : []
  if ([uid, gid, ...additionalGids].some((id) => !Number.isInteger(id) || id < 0 || id >= SANDBOX_IDS)) {
    return `user '${requested ?? ''}' has an id of ${String(SANDBOX_IDS)} or more, which a sandbox has not`
  }
  const home = entry?.[5]
  return { uid, gid, additionalGids, home: home === undefined || home === '' ? '/' : home }
}

function isNumber(text: string): boolean {
  return /^\d+$/.test(text)
}

function findEntry(text: string, field: number, value: string): readonly string[] | undefined {
  for (const fields of entriesOf(text)) if (fields[field] === value) return fields
  return undefined
}

function groupsOf(text: string, member: string): readonly number[] {
  const gids: number[] = []
  for (const fields of entriesOf(text))
    if (fields[3]?.split(',').includes(member) === true) gids.push(Number(fields[2]))
  return gids
}

/** Splits one line of a user file after the other, so that a search takes no more memory than the file. */
function* entriesOf(text: string): Generator<readonly string[]> {
  for (let start = 0, end = 0; start < text.length; start = end + 1) {
    const newline = text.indexOf('\n', start)
    end = newline === -1 ? text.length : newline
    if (end > start && text[start] !== '#') yield text.slice(start, end).split(':', FIELDS)
  }
}

/** The fields of an entry of `/etc/passwd` (passwd(5)). An entry of `/etc/group` has fewer. */
const FIELDS = 7

async function readBounded({ root, isFresh }: FilesRoot, path: string): Promise<string> {
  try {
    const bytes = await readInRoot(root, path, { isFresh, limitBytes: USER_FILE_LIMIT_BYTES })
    // the last line of a longer file may be cut, in the middle of a number
    const end = bytes.length < USER_FILE_LIMIT_BYTES ? bytes.length : bytes.lastIndexOf('\n') + 1
    return bytes.toString('utf8', 0, end)
  } catch (error) {
    // The file is missing, is not a regular file, or is in a disk image, which only the sandbox may enter.
    if (error instanceof PathInRootError || hasErrorCode(error, 'EACCES')) return ''
    throw error
  }
}
