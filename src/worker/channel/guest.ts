import type { Duplex, Readable, Writable } from 'node:stream'
import type { GuestFiles } from './guest-files.ts'

/** What the agent's side of the command channel needs of a sandbox; each driver that plays the agent itself gives one. */
export interface Guest {
  /** Starts a process in the sandbox. Rejects with `ExecFailure` and then nothing is left running. */
  exec(request: GuestExec): Promise<GuestProcess>
  /**
   * Connects to a host and port as the sandbox sees them: its own name look-up, network and policy. Rejects with
   * `TcpFailure`, or with the signal's reason, and then nothing is left open. Each direction of the stream ends by
   * itself; what it breaks of is a `TcpFailure`, which it tells after all that arrived was read. `destroy` cuts the
   * connection, `close` comes when nothing of it is left.
   */
  connect(target: TcpTarget, signal: AbortSignal): Promise<Duplex>
  /** File operations for one client, which ends them with `close`. Rejects with `FileFailure`. */
  openFiles(): Promise<GuestFiles>
}

/** Where a TCP connection goes to. The host is a name or an address, not empty and without a NUL. */
export type TcpTarget = { readonly host: string; readonly port: number }

/** A connection that could not be made or that broke, in words for the client. */
export class TcpFailure extends Error {}

/** An exec request after parsing; sandbox defaults (env, user, workdir) are applied by the guest, the request's own win. */
export type GuestExec = {
  readonly cmd: string
  readonly args: readonly string[]
  /** `KEY=VALUE` items, valid ones only. */
  readonly env: readonly string[]
  readonly cwd: string | null
  readonly user: string | null
  readonly tty: { readonly rows: number; readonly cols: number } | null
  readonly rlimits: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[]
}

/** A process in a sandbox. With a tty there is one output stream, `stdout`. */
export interface GuestProcess {
  /** Process id, as the sandbox sees it where that can be known. */
  readonly pid: number
  readonly stdin: Writable
  readonly stdout: Readable
  readonly stderr: Readable | null
  /** Does nothing without a tty. */
  resize(rows: number, cols: number): void
  /** Sends a Linux signal number to the process group; nothing happens once it has ended. */
  signal(signal: number): void
  /** Resolves when the process was reaped: its exit code, or -1 when a signal ended it. Never rejects. */
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

/** A process that could not be started, in the words of the agent protocol (section 7.1). */
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
