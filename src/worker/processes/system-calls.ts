import { join } from 'node:path'
import type { Log } from '../../lib/log.ts'
import { CommandError, localCommands, type CommandResult, type CommandRunner } from '../../lib/run-command.ts'
import { encodeFields, sendRequest, setKeepsAlive, startPerl, type PerlProcess } from './perl-process.ts'

/** The system calls of `perl/system-calls.pl`, each with its arguments. */
export type SystemCall =
  /**
   * Copies a file to a new file that only its owner can read. The two share their blocks where the file system can do that.
   * Otherwise blocks of zeros become holes.
   */
  | readonly ['copy', from: string, to: string]
  /**
   * Copies a disk as `copy` does. If it is mounted on the folder, its file system is frozen meanwhile, so that the copy has all that
   * was written. A killed call thaws it too.
   */
  | readonly ['snapshot', image: string, folder: string, to: string]
  /** Thaws a disk that is mounted on the folder and was left frozen. May be repeated. */
  | readonly ['thaw', image: string, folder: string]
  /** Creates named pipes, replacing existing files. Any user who can reach a pipe may open it. */
  | readonly ['fifos', ...paths: string[]]
  /** Mounts a disk image on a folder. Creates the folders `upper`, which belongs to the owner, and `work` in it. */
  | readonly ['disk', image: string, folder: string, owner: string]
  /** Mounts a file system on a folder with the device nodes of one sandbox. */
  | readonly ['devices', folder: string]
  /**
   * Mounts an overlay on the folder `root` in `base`. Its lower folders are `layers`, the lowest first. Its upper
   * folder is on the run's disk, which is mounted on `disk` in `base`. With `map`, the path of a user namespace, the owners of
   * files appear by its map; with an empty text they appear as on disk.
   */
  | readonly ['root', base: string, options: string, map: string, ...layers: string[]]
  /**
   * Mounts a file or folder on `pin` with the map of a user namespace. `set` and `clear` are sums of the flags that the mount
   * has and has not (mount_setattr(2)).
   */
  | readonly ['pin', source: string, pin: string, map: string, set: string, clear: string]
  /** Fails unless mounts of the folders can be idmapped. */
  | readonly ['try-idmap', map: string, ...folders: string[]]
  /** Fails unless an overlay accepts idmapped layers. Makes and removes the folder `scratch`. */
  | readonly ['try-idmapped-layers', map: string, scratch: string]
  /** Creates a network namespace with a loopback device. Programs in it may listen on every port. */
  | readonly ['network', path: string]
  /**
   * Creates such a namespace with a veth pair to the router's namespace. The router's end is `device` with the address
   * `gateway`; the sandbox's end is `eth0` with `address`.
   */
  | readonly ['network', path: string, router: string, device: string, gateway: string, address: string, prefix: string]
  /**
   * Names the host that a process sees. `ticks` is its start time (`ProcessIdentity`). Refused if the process has ended, or sees
   * the name of this machine.
   */
  | readonly ['hostname', pid: string, ticks: string, name: string]

/** Runs commands on this machine, and makes system calls that Node doesn't offer. */
export type HostCommands = CommandRunner & {
  /**
   * Makes a system call. Rejects with `CommandError` when the kernel refuses the call, or when it takes longer than
   * `timeoutMs`.
   */
  callSystem(call: SystemCall, options?: { readonly timeoutMs: number }): Promise<void>
}

export const SYSTEM_CALLS_SCRIPT = join(import.meta.dirname, '../perl/system-calls.pl')
/**
 * The time limit for a call. Calls take 1 to 10 ms (2026-11), so only a hung call reaches the limit. Only a call that copies a whole
 * disk gets a longer one.
 */
export const CALL_TIMEOUT_MS = 20_000

/** Runs commands and system calls without a helper. Each system call starts a Perl process. */
export const localHostCommands: HostCommands = {
  ...localCommands,
  async callSystem(call, { timeoutMs } = { timeoutMs: CALL_TIMEOUT_MS }) {
    await localCommands.run('perl', [SYSTEM_CALLS_SCRIPT, ...call], { timeoutMs, cwd: '/' })
  },
}

/** A few Perl processes that make system calls. Each process makes one call at a time. */
type SystemCallWorkers = Pick<HostCommands, 'callSystem'> & {
  /** Ends the processes. Each process finishes its current call first. */
  close(): void
}

/**
 * The maximum number of processes. There are several, because a call that waits for a disk must not delay all others.
 * Usually only the first process is busy.
 */
const WORKERS_LIMIT = 4

type PendingCall = {
  readonly call: SystemCall
  readonly timeoutMs: number
  readonly succeed: () => void
  readonly fail: (result: CommandResult | null, cause?: unknown) => void
}
type CallWorker = { readonly perl: PerlProcess; current: PendingCall | null; timeout: NodeJS.Timeout | null }

/**
 * Creates the workers without starting a process. A process is started when a call finds all others busy, up to
 * `WORKERS_LIMIT` processes. If a call takes too long, its process is killed.
 */
export function makeSystemCallWorkers(log: Log): SystemCallWorkers {
  const workers: CallWorker[] = []
  const waiting: PendingCall[] = []
  let lastNumber = 0

  const finishCall = (worker: CallWorker): PendingCall | null => {
    const finished = worker.current
    if (worker.timeout !== null) clearTimeout(worker.timeout)
    worker.current = null
    worker.timeout = null
    setKeepsAlive(worker.perl, false)
    return finished
  }
  const startWorker = (): CallWorker => {
    const perl = startPerl({
      script: SYSTEM_CALLS_SCRIPT,
      args: ['serve', String(process.pid)],
      onReply: ({ word, rest }) => {
        const finished = finishCall(worker)
        if (word === 'ended') finished?.succeed()
        else finished?.fail({ code: 1, stdout: '', stderr: rest })
        startCalls()
      },
      onEnd: (error) => {
        if (!workers.includes(worker)) return
        workers.splice(workers.indexOf(worker), 1)
        finishCall(worker)?.fail(null, new Error('the process for system calls has ended', { cause: error }))
        startCalls()
      },
      log,
    })
    const worker: CallWorker = { perl, current: null, timeout: null }
    workers.push(worker)
    return worker
  }
  const startWorkerFor = ({ fail }: PendingCall): CallWorker | null => {
    try {
      return startWorker()
    } catch (error) {
      fail(null, new Error('no process for system calls could be started', { cause: error }))
      return null
    }
  }
  const startCalls = (): void => {
    for (let next = waiting[0]; next !== undefined; next = waiting[0]) {
      const idle = workers.find(({ current }) => current === null)
      if (idle === undefined && workers.length >= WORKERS_LIMIT) return
      waiting.shift()
      const worker = idle ?? startWorkerFor(next)
      if (worker === null) continue
      worker.current = next
      worker.timeout = setTimeout(() => worker.perl.kill('SIGKILL'), next.timeoutMs)
      setKeepsAlive(worker.perl, true)
      sendRequest(worker.perl, ++lastNumber, encodeFields(next.call))
    }
  }

  return {
    callSystem: (call, { timeoutMs } = { timeoutMs: CALL_TIMEOUT_MS }) =>
      new Promise((succeed, reject) => {
        const fail: PendingCall['fail'] = (result, cause) => {
          reject(new CommandError('perl', [SYSTEM_CALLS_SCRIPT, ...call], result, cause))
        }
        if (call.some((part) => part.includes('\0'))) {
          fail(null, new Error('an argument contains a NUL'))
          return
        }
        waiting.push({ call, timeoutMs, succeed, fail })
        startCalls()
      }),
    close() {
      for (const { perl } of workers) perl.stdin.end()
    },
  }
}
