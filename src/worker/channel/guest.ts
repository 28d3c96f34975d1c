import type { Duplex, Readable, Writable } from 'node:stream'
import type { GuestFiles } from './guest-files.ts'

/**
 * What a channel needs from a sandbox: starting processes, connections and file operations. Each driver whose sandboxes
 * contain no agent implements this interface.
 */
export interface Guest {
  /** Starts a process in the sandbox. Rejects with `ExecFailure`, and then leaves no process running. */
  exec(request: GuestExec): Promise<GuestProcess>
  /**
   * Connects to a host and port with the sandbox's own name resolution, network and policy. Rejects with `TcpFailure`
   * or the signal's reason, and then leaves no connection open.
   *
   * Each direction of the stream ends independently. When the connection breaks, the stream fails with a `TcpFailure`
   * after all received data has been read. `destroy` closes the connection at once. `close` is emitted when all its
   * resources are released.
   */
  connect(target: TcpTarget, signal: AbortSignal): Promise<Duplex>
  /**
   * Starts a process for the file operations of one client. The caller ends it with `close`. Rejects with
   * `FileFailure`.
   */
  openFiles(): Promise<GuestFiles>
}

/** The target of a TCP connection. `host` is a name or an address. It is not empty and contains no NUL. */
export type TcpTarget = { readonly host: string; readonly port: number }

/** A connection that could not be opened, or that broke. The client receives the message. */
export class TcpFailure extends Error {}

/**
 * A decoded exec request. The guest applies the sandbox's defaults (env, user, workdir); values in the request take
 * precedence.
 */
export type GuestExec = {
  readonly cmd: string
  readonly args: readonly string[]
  /** `KEY=VALUE` items, without the invalid items of the request. */
  readonly env: readonly string[]
  readonly cwd: string | null
  readonly user: string | null
  readonly tty: { readonly rows: number; readonly cols: number } | null
  readonly rlimits: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[]
}

/** A process in a sandbox. With a tty, `stdout` is its only output. */
export interface GuestProcess {
  /** The process id as the sandbox sees it, if the driver knows it. */
  readonly pid: number
  readonly stdin: Writable
  readonly stdout: Readable
  readonly stderr: Readable | null
  /** Sets the terminal size. Does nothing without a tty. */
  resize(rows: number, cols: number): void
  /**
   * Sends a Linux signal, from 1 to 64, to the process group soon. Does nothing once the process has ended. Clients may send many,
   * so a call must be cheap.
   */
  signal(signal: number): void
  /** Resolves once the process is reaped: with its exit code, or with -1 if a signal ended it. Never rejects. */
  readonly exited: Promise<number>
  /**
   * After the exit: describes a process of the sandbox that the kernel killed meanwhile because memory ran out. Null if there
   * was none. Absent if the driver can't tell.
   */
  readonly describeMemoryKill?: () => string | null
}

const EXEC_FAILURE_KINDS = [
  'not_found',
  'permission_denied',
  'not_executable',
  'bad_cwd',
  'bad_args',
  'resource_limit',
  'user_setup_failed',
  'out_of_memory',
  'pty_setup_failed',
  'other',
] as const
type ExecFailureKind = (typeof EXEC_FAILURE_KINDS)[number]

/** A process that could not be started, described in the agent protocol's terms. */
export class ExecFailure extends Error {
  readonly kind: ExecFailureKind
  readonly errno: number | null
  readonly errnoName: string | null
  readonly stage: string | null
  constructor(
    kind: ExecFailureKind,
    message: string,
    detail: { errno?: number; errnoName?: string; stage?: string } = {},
  ) {
    super(message)
    this.kind = kind
    this.errno = detail.errno ?? null
    this.errnoName = detail.errnoName ?? null
    this.stage = detail.stage ?? null
  }
}
