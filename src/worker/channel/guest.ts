import type { Duplex, Readable, Writable } from 'node:stream'
import type { GuestFiles } from './guest-files.ts'

/** What a channel needs of a sandbox. Each driver that plays the agent itself implements it. */
export interface Guest {
  /** Starts a process in the sandbox. When it rejects, with `ExecFailure`, nothing is left running. */
  exec(request: GuestExec): Promise<GuestProcess>
  /**
   * Connects to a host and port with the sandbox's own name look-up, network and policy. When it rejects, with
   * `TcpFailure` or the signal's reason, nothing is left open.
   *
   * Each direction of the stream ends by itself. When the connection breaks, the stream fails with a `TcpFailure` after
   * all received data was read. `destroy` cuts the connection; `close` is emitted when nothing of it is left.
   */
  connect(target: TcpTarget, signal: AbortSignal): Promise<Duplex>
  /** Starts file operations for one client, which ends them with `close`. Rejects with `FileFailure`. */
  openFiles(): Promise<GuestFiles>
}

/** The target of a TCP connection. The host is a name or an address, not empty and without a NUL. */
export type TcpTarget = { readonly host: string; readonly port: number }

/** A connection that could not be made, or that broke. The message goes to the client. */
export class TcpFailure extends Error {}

/**
 * A decoded exec request. The guest applies the sandbox's defaults (env, user, workdir); values in the request take
 * precedence.
 */
export type GuestExec = {
  readonly cmd: string
  readonly args: readonly string[]
  /** `KEY=VALUE` items; invalid ones were dropped. */
  readonly env: readonly string[]
  readonly cwd: string | null
  readonly user: string | null
  readonly tty: { readonly rows: number; readonly cols: number } | null
  readonly rlimits: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[]
}

/** A process in a sandbox. With a tty, `stdout` is its only output. */
export interface GuestProcess {
  /** The process id as the sandbox sees it, where that is known. */
  readonly pid: number
  readonly stdin: Writable
  readonly stdout: Readable
  readonly stderr: Readable | null
  /** Does nothing without a tty. */
  resize(rows: number, cols: number): void
  /** Sends a Linux signal to the process group. Does nothing once the process has ended. */
  signal(signal: number): void
  /** Resolves once the process was reaped, with its exit code, or -1 when a signal ended it. Never rejects. */
  readonly exited: Promise<number>
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
