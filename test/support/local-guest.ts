import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { ExecFailure } from '../../src/worker/channel/guest.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'

/** A guest made of this machine's own processes, each the leader of its group. It knows no users, limits or terminals. */
export function makeLocalGuest(): Guest {
  return {
    async exec(request) {
      const child = spawn(request.cmd, [...request.args], {
        stdio: ['pipe', 'pipe', 'pipe'],
        detached: true,
        cwd: request.cwd ?? '/',
        env: Object.fromEntries(['PATH=/usr/bin:/bin', ...request.env].map((item) => item.split(/=(.*)/s, 2))),
      })
      const exited = new Promise<number>((resolve) => {
        child.once('exit', (code) => {
          resolve(code ?? -1)
        })
      })
      const { pid } = child
      if (pid === undefined) {
        const error = await new Promise<Error>((resolve) => child.once('error', resolve))
        throw new ExecFailure('not_found', error.message, { errno: constants.errno.ENOENT, errnoName: 'ENOENT' })
      }
      return {
        pid,
        stdin: child.stdin,
        stdout: child.stdout,
        stderr: child.stderr,
        exited,
        resize: () => {
          // no terminal
        },
        signal: (signal) => {
          if (isAlive(-pid)) process.kill(-pid, signal)
        },
      }
    },
  }
}

/** Whether a process, or with a negative number a process group, exists. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
