import type { Stats } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { constants } from 'node:os'
import { posix } from 'node:path'
import { ExecFailure } from '../../../channel/guest.ts'
import type { SandboxUser } from '../rootfs/users.ts'
import { openInRoot, resolveInRoot, PathInRootError } from '../../shared/resolve-in-root.ts'

/** A container's root folder on the host, and the shift of its user ids there. */
type ContainerRoot = {
  readonly path: string
  readonly uidShift: number
  /**
   * Mount points in the container whose content the host can't see. Paths beneath them are not checked; the runtime
   * then reports any error.
   */
  readonly hiddenMountPoints: readonly string[]
}

/** The program to look up, and where to search for it. */
type ProgramSearch = {
  readonly cmd: string
  /** Absolute, as the container sees it. */
  readonly cwd: string
  /** The value of PATH that the process will have. */
  readonly path: string
  readonly user: SandboxUser
}

/**
 * The maximum number of folders of PATH to search. There is a limit because each folder needs file operations on the
 * host.
 */
const MAX_PATH_FOLDERS = 64
/** How many bytes of a script's first line Linux reads (execve(2)). */
const SHEBANG_BYTES = 256

/**
 * Checks by the rules of execve(2) that a program can be executed, because the runtimes' own messages hide the reason. Rejects
 * with `ExecFailure` of kind `not_found`, `permission_denied` or `not_executable`.
 */
export async function checkProgram(root: ContainerRoot, search: ProgramSearch): Promise<void> {
  let denied: ExecFailure | null = null
  for (const path of candidates(search)) {
    const seen = await checkCandidate(root, path, search)
    if (seen === 'fine') return
    if (seen.kind === 'not_executable' || search.cmd.includes('/')) throw seen
    if (seen.kind === 'permission_denied') denied ??= seen
  }
  throw denied ?? failure('not_found', search.cmd, 'ENOENT')
}

/** Checks that a process can start in a folder. Rejects with `ExecFailure` of kind `bad_cwd`. */
export async function checkWorkdir(root: ContainerRoot, cwd: string, user: SandboxUser): Promise<void> {
  const refuse = (code: ErrnoName): ExecFailure =>
    new ExecFailure('bad_cwd', `chdir ${JSON.stringify(cwd)}: ${code} (os error ${String(constants.errno[code])})`, {
      errno: constants.errno[code],
      errnoName: code,
      stage: 'chdir',
    })
  try {
    if (await isHidden(root, cwd)) return
    await using folder = await openInRoot(root.path, cwd)
    const stat = await folder.stat()
    if (!stat.isDirectory()) throw refuse('ENOTDIR')
    if (!mayExecute(stat, user, root.uidShift)) throw refuse('EACCES')
  } catch (error) {
    if (error instanceof PathInRootError) throw refuse(error.code === 'EINVAL' ? 'ENOTDIR' : error.code)
    throw error
  }
}

type ErrnoName = 'ENOENT' | 'ENOTDIR' | 'ELOOP' | 'EACCES' | 'ENOEXEC' | 'EINVAL'

function candidates({ cmd, cwd, path }: ProgramSearch): readonly string[] {
  if (cmd === '') return []
  if (cmd.includes('/')) return [posix.resolve(cwd, cmd)]
  return path
    .split(':')
    .slice(0, MAX_PATH_FOLDERS)
    .map((folder) => posix.resolve(cwd, folder, cmd))
}

async function checkCandidate(root: ContainerRoot, path: string, search: ProgramSearch): Promise<'fine' | ExecFailure> {
  try {
    if (await isHidden(root, path)) return 'fine'
    await using file = await openInRoot(root.path, path)
    const stat = await file.stat()
    if (!stat.isFile() || !mayExecute(stat, search.user, root.uidShift)) {
      return failure('permission_denied', search.cmd, 'EACCES')
    }
    const interpreter = await interpreterOf(file)
    if (interpreter === 'binary') return 'fine'
    if (interpreter === 'unknown') return failure('not_executable', search.cmd, 'ENOEXEC')
    const interpreterPath = posix.resolve(search.cwd, interpreter.path)
    if (await isHidden(root, interpreterPath)) return 'fine'
    await using _exists = await openInRoot(root.path, interpreterPath)
    return 'fine'
  } catch (error) {
    if (!(error instanceof PathInRootError)) throw error
    if (error.code === 'EINVAL') return failure('permission_denied', search.cmd, 'EACCES')
    return failure('not_found', search.cmd, error.code)
  }
}

async function isHidden({ path, hiddenMountPoints }: ContainerRoot, requested: string): Promise<boolean> {
  if (hiddenMountPoints.length === 0) return false
  const { guestPath } = await resolveInRoot(path, requested)
  return hiddenMountPoints.some((point) => guestPath === point || guestPath.startsWith(`${point}/`))
}

/**
 * Finds out how Linux executes a file: as a binary, with the interpreter that its first line names, or `unknown` if
 * Linux can't execute it.
 */
async function interpreterOf(file: FileHandle): Promise<'binary' | 'unknown' | { readonly path: string }> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(SHEBANG_BYTES), 0, SHEBANG_BYTES, 0)
  const start = buffer.toString('latin1', 0, bytesRead)
  if (start.startsWith('\x7fELF')) return 'binary'
  if (!start.startsWith('#!')) return 'unknown'
  const path = /^#![ \t]*([^ \t\n\0]+)/.exec(start)?.[1]
  return path === undefined ? 'unknown' : { path: Buffer.from(path, 'latin1').toString('utf8') }
}

/**
 * Checks the execute permission of a file, or the search permission of a folder, as Linux does. On a file, root needs any
 * execute bit. On a folder, root needs none.
 */
function mayExecute(stat: Stats, user: SandboxUser, uidShift: number): boolean {
  if (user.uid === 0) return stat.isDirectory() || (stat.mode & 0o111) !== 0
  if (stat.uid === user.uid + uidShift) return (stat.mode & 0o100) !== 0
  if ([user.gid, ...user.additionalGids].some((gid) => stat.gid === gid + uidShift)) return (stat.mode & 0o010) !== 0
  return (stat.mode & 0o001) !== 0
}

function failure(
  kind: 'not_found' | 'permission_denied' | 'not_executable',
  cmd: string,
  code: ErrnoName,
): ExecFailure {
  const errno = constants.errno[code]
  return new ExecFailure(kind, `spawn ${JSON.stringify(cmd)}: ${code} (os error ${String(errno)})`, {
    errno,
    errnoName: code,
    stage: 'execvp',
  })
}
