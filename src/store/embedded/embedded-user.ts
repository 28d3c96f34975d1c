import { chown } from 'node:fs/promises'
import { tryCommand } from '../../lib/run-command.ts'

/** The system user that runs the embedded server. */
export type ServerUser = {
  /** The user and group id with which to start processes. Empty if the server's user is this process's own user. */
  readonly ids: { readonly uid?: number; readonly gid?: number }
  readonly uid: number
  readonly gid: number
}

/** The system user that runs the embedded server if this process is root. */
export const SERVER_USER_NAME = 'sandyard'

/** How long the system's tools for users may take, in milliseconds. */
const USER_TOOL_TIMEOUT_MS = 20_000

/**
 * Finds the system user that runs the embedded server. PostgreSQL refuses to run as root. If this process is root, this
 * function creates the system user `sandyard` once, without home, shell or password. Otherwise this process's own user
 * runs the server.
 */
export async function findServerUser(): Promise<ServerUser> {
  const uid = process.getuid?.() ?? -1
  const gid = process.getgid?.() ?? -1
  if (uid !== 0) return { ids: {}, uid, gid }
  const found = (await lookUp()) ?? (await createUser())
  return { ids: found, ...found }
}

/** Makes the server's user the owner of a path. Does nothing if the server's user is this process's own user. */
export async function chownTo(user: ServerUser, path: string): Promise<void> {
  if (user.ids.uid !== undefined) await chown(path, user.uid, user.gid)
}

/** Whether the server's user can enter and write to a folder. */
export async function canAccess(user: ServerUser, dir: string): Promise<boolean> {
  const { code } = await tryCommand('test', ['-x', dir, '-a', '-w', dir], {
    timeoutMs: USER_TOOL_TIMEOUT_MS,
    cwd: '/',
    ...user.ids,
  })
  return code === 0
}

async function lookUp(): Promise<{ readonly uid: number; readonly gid: number } | null> {
  const uid = await tryCommand('id', ['-u', SERVER_USER_NAME], { timeoutMs: USER_TOOL_TIMEOUT_MS })
  const gid = await tryCommand('id', ['-g', SERVER_USER_NAME], { timeoutMs: USER_TOOL_TIMEOUT_MS })
  if (uid.code !== 0 || gid.code !== 0) return null
  return { uid: Number(uid.stdout), gid: Number(gid.stdout) }
}

async function createUser(): Promise<{ readonly uid: number; readonly gid: number }> {
  const options = [
    '--system',
    '--user-group',
    '--no-create-home',
    '--home-dir',
    '/nonexistent',
    '--shell',
    '/usr/sbin/nologin',
  ]
  const made = await tryCommand('useradd', [...options, SERVER_USER_NAME], { timeoutMs: USER_TOOL_TIMEOUT_MS })
  const found = await lookUp() // another process may have created it first
  if (found !== null) return found
  throw new Error(
    `the system user "${SERVER_USER_NAME}", which runs the embedded PostgreSQL, could not be created (${made.stderr.trim()}): ` +
      `create it with "useradd --system ${SERVER_USER_NAME}", run this program as another user than root, or set DATABASE_URL`,
  )
}
