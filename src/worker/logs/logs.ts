import type { LogEntry, LogQuery, LogSource } from '../../contract/streams/log-protocol.ts'
import type { SandboxId } from '../../domain/ids.ts'

/**
 * The logs of the sandboxes that ran on this worker, kept on its disk: what processes wrote, and what the worker has to
 * say. Each has a limit, beyond which its oldest entries go; after the last run it is kept for a set time.
 */
export interface SandboxLogs {
  /** The one writer of a sandbox's log; asked for again it is the same. */
  writerOf(sandbox: SandboxId): LogWriter
  /**
   * What a query wants, as it is read; the caller may stop at any time. Without `follows` it ends with what is there;
   * with it, once no run is left (`LogWriter.closeRun`) and all was given. A sandbox that never logged has no entries.
   */
  read(sandbox: SandboxId, query: LogQuery, signal: AbortSignal): AsyncIterable<LogEntry>
  /** Whether a run of the sandbox is open here. */
  isLive(sandbox: SandboxId): boolean
  /** Deletes a sandbox's log; one that is not there succeeds. */
  discard(sandbox: SandboxId): Promise<void>
  /** Writes what is still held and lets go of all files. */
  close(): Promise<void>
}

/** Never fails and never waits: what can't be kept is dropped, and a `system` entry says how much. */
export interface LogWriter {
  /** A run that begins or was adopted: followers wait for it. May be repeated. */
  openRun(): void
  /** The run is over: followers end once they have everything. May be repeated. */
  closeRun(): void
  /** A sentence of the worker's own, without its line feed. */
  system(text: string): void
  /** A stream of output, whose bytes are cut into lines; `end` writes what is left of the last one. */
  stream(source: Exclude<LogSource, 'system'>): LogStream
}

export type LogStream = { write(data: Buffer): void; end(): void }

/** Logs of a worker that keeps none: everything is taken, nothing is there. */
export function makeNoLogs(): SandboxLogs {
  const writer: LogWriter = {
    openRun: () => undefined,
    closeRun: () => undefined,
    system: () => undefined,
    stream: () => ({ write: () => undefined, end: () => undefined }),
  }
  return {
    writerOf: () => writer,
    // oxlint-disable-next-line require-yield
    async *read() {
      return
    },
    isLive: () => false,
    discard: () => Promise.resolve(),
    close: () => Promise.resolve(),
  }
}
