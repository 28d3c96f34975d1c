import { spawn, type ChildProcess } from 'node:child_process'
import { getCompileCacheDir } from 'node:module'
import { join } from 'node:path'
import { findMissingPrograms } from '../../worker/drivers/shared/machine.ts'
import { environmentWithoutSettings } from './child-settings.ts'

/**
 * Node keeps compiled code there, as cli.ts says. By a variable, it also finds the child's own file there. The built
 * program has no cache.
 */
const COMPILE_CACHE = join(import.meta.dirname, '..', '..', '..', '.setup', 'compile-cache')

/** Starts a program of ours as a child with a pipe for messages, and with nothing secret on its command line or in its environment. */
export function startChild(program: string): ChildProcess {
  const [file = '', ...args] = commandOf(program)
  const cache = getCompileCacheDir() === undefined ? {} : { NODE_COMPILE_CACHE: COMPILE_CACHE }
  return spawn(file, args, {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    serialization: 'advanced',
    env: { ...environmentWithoutSettings(process.env), ...cache },
    detached: true, // keeps Ctrl-C in the terminal of its parent from it
  })
}

/** Sends a message to a child. If the child has ended, `endOfChild` says so. */
export function tellChild(child: ChildProcess, order: object): void {
  if (child.connected) child.send(order, () => undefined)
}

/** Resolves with how a child ended, after its last message. */
export async function endOfChild(child: ChildProcess): Promise<string> {
  const disconnected = new Promise<void>((resolve) => child.once('disconnect', () => resolve()))
  const how = await new Promise<string>((resolve) => {
    child.once('exit', (code, signal) => resolve(signal ?? `exit code ${String(code)}`))
    child.on('error', (error) => {
      if (child.pid === undefined) resolve(error.message) // it could not be started
    })
  })
  if (child.pid !== undefined && child.connected) await disconnected
  return how
}

/**
 * The command line of the child. Linux kills the child when its parent dies, however the parent dies and whatever the child does then: it
 * would use what the next parent uses.
 */
function commandOf(program: string): readonly string[] {
  const words = [process.execPath, ...process.execArgv, program]
  if (process.platform !== 'linux' || findMissingPrograms(['setpriv']).length > 0) return words
  return ['setpriv', '--pdeathsig', 'KILL', ...words]
}
