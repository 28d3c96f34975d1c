import type { ChannelClient } from '../channel-client/channel-client.ts'
import { eachLine } from '../lib/streams/each-line.ts'
import { WHOAMI_SCRIPT } from './shell-script.ts'

/** Who the sandbox's user is: files that SFTP creates belong to them, and relative paths begin in their folder. */
export type SandboxUser = { readonly user: string; readonly folder: string }

const SIGKILL = 9
const LINES = 3

/** Asks the sandbox's own shell, which may print anything and never end. Rejects when `limit` aborts. */
export async function findSandboxUser(client: Pick<ChannelClient, 'exec'>, limit: AbortSignal): Promise<SandboxUser> {
  const process = client.exec({ cmd: '/bin/sh', args: ['-c', WHOAMI_SCRIPT], env: [], cwd: null, user: null, tty: null }) // prettier-ignore
  process.stderr.resume()
  const lines: string[] = []
  const read = eachLine(process.stdout, (line) => {
    if (lines.length < LINES) lines.push(line)
  })
  const late = Promise.withResolvers<never>()
  const onLate = (): void => {
    process.signal(SIGKILL)
    process.stdout.destroy()
    process.stderr.destroy()
    late.reject(new Error('the shell of the sandbox did not answer'))
  }
  limit.addEventListener('abort', onLate, { once: true })
  try {
    await Promise.race([late.promise, Promise.all([read, process.exit])])
  } finally {
    limit.removeEventListener('abort', onLate)
  }
  const [uid = '', gid = '', folder = ''] = lines
  return { user: uid === '' ? '0:0' : `${uid}:${gid}`, folder: folder.startsWith('/') ? folder : '/' }
}
