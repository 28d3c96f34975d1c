import { readdirSync, type Stats } from 'node:fs'
import type { FileHandle } from 'node:fs/promises'
import { constants } from 'node:os'
import { posix } from 'node:path'
import { ExecFailure } from '../../../channel/guest.ts'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { readElfHeader, runsOn } from '../../shared/elf.ts'
import type { SandboxUser } from './users.ts'
import {
  newStepBudget,
  openInRoot,
  resolveInRoot,
  PathInRootError,
  type StepBudget,
} from '../../shared/resolve-in-root.ts'

/** A container's root folder on the host, and the shift of its user ids there. */
type ContainerRoot = {
  readonly path: string
  readonly uidShift: number
  /**
   * Mount points in the container whose content the host can't see. Paths beneath them are not checked; the runtime
   * then reports any error.
   */
  readonly hiddenMountPoints: readonly string[]
  /** True for a root in which no process runs yet. Its files are opened synchronously, so binaries' loaders are checked too. */
  readonly isFresh?: boolean
}

/** The budget bounds the steps of all paths of a check together. */
type BoundedRoot = ContainerRoot & { readonly budget: StepBudget }

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
  const flaw = await findFlaw(root, search)
  if (flaw !== null) throw failure(flaw, search.cmd)
}

/**
 * Describes why the workload's program can't be executed, for the sandbox's owner. Null if it can. A file without `#!` in its
 * first line can: the init executes it by `/bin/sh`, as execvp(3) does.
 */
export async function describeProgramFlaw(root: ContainerRoot, search: ProgramSearch): Promise<string | null> {
  const flaw = await findFlaw(root, search)
  return flaw === null || flaw.isForShell === true ? null : `the program '${search.cmd}' ${flaw.reason}`
}

/** Why a program can't be executed. `reason` follows the program's name in a sentence. */
type ProgramFlaw = {
  readonly kind: 'not_found' | 'permission_denied' | 'not_executable'
  readonly code: ErrnoName
  readonly reason: string
  /** Whether the file itself is missing. */
  readonly isMissing?: true
  /** Whether execvp(3) executes the file by `/bin/sh`. */
  readonly isForShell?: true
}

async function findFlaw(root: ContainerRoot, search: ProgramSearch): Promise<ProgramFlaw | null> {
  let found: ProgramFlaw | null = null
  const bounded = { ...root, budget: newStepBudget() }
  for (const path of candidates(search)) {
    const flaw = await checkCandidate(bounded, path, search)
    if (flaw === null) return null
    if (flaw.kind === 'not_executable' || search.cmd.includes('/')) return flaw
    if (flaw.isMissing !== true) found ??= flaw
  }
  const where = search.cmd.includes('/') ? '' : `'s PATH (${search.path})`
  return found ?? { kind: 'not_found', code: 'ENOENT', reason: `was not found in the sandbox${where}`, isMissing: true }
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
    const budget = newStepBudget()
    if (await isHidden({ ...root, budget }, cwd)) return
    await using folder = await openInRoot(root.path, cwd, { budget })
    const stat = await folder.stat()
    if (!stat.isDirectory()) throw refuse('ENOTDIR')
    if (!mayExecute(stat, user, root.uidShift)) throw refuse('EACCES')
  } catch (error) {
    if (isOfSandboxAlone(error)) return
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

async function checkCandidate(root: BoundedRoot, path: string, search: ProgramSearch): Promise<ProgramFlaw | null> {
  const { isFresh = false, budget } = root
  const denied = (reason: string): ProgramFlaw => ({ kind: 'permission_denied', code: 'EACCES', reason })
  try {
    if (await isHidden(root, path)) return null
    await using file = await openInRoot(root.path, path, { isFresh, budget })
    const stat = await file.stat()
    if (stat.isDirectory()) return denied('is a folder')
    if (!stat.isFile()) return denied('is not a regular file')
    if (!mayExecute(stat, search.user, root.uidShift))
      return denied(`is not executable by user ${String(search.user.uid)}`)
    const needed = await neededFor(file)
    if ('reason' in needed) return needed
    if (needed.what === 'nothing' || (needed.what === 'loader' && !isFresh)) return null
    return await checkNeeded(root, search, needed)
  } catch (error) {
    if (isOfSandboxAlone(error)) return null
    if (!(error instanceof PathInRootError)) throw error
    if (error.code === 'EINVAL') return denied('is not a regular file')
    return { kind: 'not_found', code: error.code, reason: 'was not found in the sandbox', isMissing: true }
  }
}

/** Another file without which a program can't be executed. */
type NeededFile = { readonly what: 'interpreter' | 'loader'; readonly path: string }

async function checkNeeded(
  root: BoundedRoot,
  { cwd }: ProgramSearch,
  { what, path }: NeededFile,
): Promise<ProgramFlaw | null> {
  const resolved = posix.resolve(cwd, path)
  if (await isHidden(root, resolved)) return null
  try {
    await using _exists = await openInRoot(root.path, resolved, { isFresh: root.isFresh ?? false, budget: root.budget })
    return null
  } catch (error) {
    if (isOfSandboxAlone(error)) return null
    if (!(error instanceof PathInRootError)) throw error
    const reason = `needs the ${what} '${path}', which was not found in the sandbox`
    return { kind: 'not_found', code: error.code, reason }
  }
}

/**
 * Whether a path is in a disk image, which only the sandbox may enter: the kernel refuses the host's root. Such paths are not
 * checked; the runtime then reports any error.
 */
function isOfSandboxAlone(error: unknown): boolean {
  return hasErrorCode(error, 'EACCES')
}

async function isHidden({ path, hiddenMountPoints, budget }: BoundedRoot, requested: string): Promise<boolean> {
  if (hiddenMountPoints.length === 0) return false
  const { guestPath } = await resolveInRoot(path, requested, { budget })
  return hiddenMountPoints.some((point) => guestPath === point || guestPath.startsWith(`${point}/`))
}

/** Finds out what Linux needs to execute a file: a script's interpreter, a binary's loader, or nothing else. */
async function neededFor(file: FileHandle): Promise<NeededFile | { readonly what: 'nothing' } | ProgramFlaw> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(SHEBANG_BYTES), 0, SHEBANG_BYTES, 0)
  const start = buffer.toString('latin1', 0, bytesRead)
  const flaw = (reason: string): ProgramFlaw => ({ kind: 'not_executable', code: 'ENOEXEC', reason })
  if (start.startsWith('\x7fELF')) {
    const header = await readElfHeader(file)
    if (header === null) return { what: 'nothing' }
    if (!runsOn(header.machine, process.arch) && !hasEmulators()) {
      return flaw(`is built for ${header.machine}, but this machine's processor is ${process.arch}`)
    }
    return header.loader === null ? { what: 'nothing' } : { what: 'loader', path: header.loader }
  }
  if (!start.startsWith('#!'))
    return { ...flaw("is neither a binary nor a script with '#!' in its first line"), isForShell: true }
  const path = /^#![ \t]*([^ \t\n\0]+)/.exec(start)?.[1]
  if (path === undefined) return flaw("names no interpreter after '#!' in its first line")
  return { what: 'interpreter', path: Buffer.from(path, 'latin1').toString('utf8') }
}

/** The handlers by which this machine executes other formats, such as binaries for other processors (binfmt_misc). */
const HANDLERS = '/proc/sys/fs/binfmt_misc'

function hasEmulators(): boolean {
  try {
    return readdirSync(HANDLERS).some((name) => name !== 'register' && name !== 'status')
  } catch {
    return false // the machine has no binfmt_misc
  }
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

function failure({ kind, code, reason, isMissing }: ProgramFlaw, cmd: string): ExecFailure {
  const errno = constants.errno[code]
  const detail = isMissing === true ? '' : `: ${reason}`
  return new ExecFailure(kind, `spawn ${JSON.stringify(cmd)}: ${code} (os error ${String(errno)})${detail}`, {
    errno,
    errnoName: code,
    stage: 'execvp',
  })
}
