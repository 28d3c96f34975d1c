import { spawn } from 'node:child_process'
import { connect } from 'node:net'
import { constants } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { getSystemErrorMap } from 'node:util'
import { ExecFailure, TcpFailure } from '../../src/worker/channel/guest.ts'
import type { Guest, GuestProcess, TcpTarget } from '../../src/worker/channel/guest.ts'
import { makeFilesClient } from '../../src/worker/channel/files-client.ts'

/**
 * Makes a guest that runs processes on this machine, each as leader of its process group. Ignores users, limits and
 * terminals.
 */
export function makeLocalGuest(): Guest {
  const guest: Guest = {
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
    connect: connectFromHere,
    openFiles: async () => makeFilesClient(await startFilesProcess(guest)),
  }
  return guest
}

/** Starts the helper program that serves files (`src/worker/perl/guest/`) in a guest. */
export async function startFilesProcess(guest: Guest): Promise<GuestProcess> {
  const args = [join(import.meta.dirname, '../../src/worker/perl/guest/files.pl'), process.arch]
  return await guest.exec({ cmd: 'perl', args, env: [], cwd: '/', user: null, tty: null, rlimits: [] })
}

function connectFromHere({ host, port }: TcpTarget, signal: AbortSignal): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port, allowHalfOpen: true, noDelay: true })
    const onAbort = (): void => {
      socket.destroy()
      reject(signal.reason instanceof Error ? signal.reason : new Error('aborted'))
    }
    signal.addEventListener('abort', onAbort, { once: true })
    socket.once('error', (error) => {
      reject(new TcpFailure(`connect ${host}:${String(port)}: ${strerror(error)}`))
    })
    socket.once('connect', () => {
      signal.removeEventListener('abort', onAbort)
      socket.removeAllListeners('error')
      resolve(socket)
    })
  })
}

function strerror(error: Error): string {
  const errno = 'errno' in error && typeof error.errno === 'number' ? error.errno : 0
  return `${getSystemErrorMap().get(errno)?.[1] ?? error.message} (os error ${String(-errno)})`
}

/** Whether a process exists; for a negative number, whether the process group does. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
