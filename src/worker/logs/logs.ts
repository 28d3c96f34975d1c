import type { LogEntry, LogQuery, LogSource } from '../../contract/streams/log-protocol.ts'
import type { SandboxId } from '../../domain/ids.ts'

/**
 * The logs of the sandboxes that ran on this worker, kept on its disk: the output of processes, and lines of the worker
 * about the runs. Each log has a size limit, beyond which its oldest entries are deleted. After the last run it is kept
 * for a set time.
 */
export interface SandboxLogs {
  /** The writer of a sandbox's log; the same one each time. */
  writerOf(sandbox: SandboxId): LogWriter
  /**
   * Reads the entries that match a query. The caller may stop at any time. Without `follows` it ends at the current
   * end; with it, once no run is open (`LogWriter.closeRun`) and everything was read. A sandbox that never logged has
   * no entries.
   */
  read(sandbox: SandboxId, query: LogQuery, signal: AbortSignal): AsyncIterable<LogEntry>
  /** Whether a run of the sandbox is open here. */
  isLive(sandbox: SandboxId): boolean
  /** Deletes a sandbox's log. A missing log is fine. */
  discard(sandbox: SandboxId): Promise<void>
  /** Writes what is pending and closes all files. */
  close(): Promise<void>
}

/** Never fails and never waits. What can't be kept is dropped, and a `system` entry says how much. */
export interface LogWriter {
  /** A run has started or was adopted; readers that follow wait for it. May be repeated. */
  openRun(): void
  /** The run is over; readers that follow end once they have everything. May be repeated. */
  closeRun(): void
  /** Writes a line of the worker's own. Pass it without a line feed. */
  system(text: string): void
  /** A stream of output, which is split into lines. `end` writes an unfinished last line. */
  stream(source: Exclude<LogSource, 'system'>): LogStream
}

export type LogStream = { write(data: Buffer): void; end(): void }

/** Logs of a worker that keeps none: writes are dropped, and reads find nothing. */
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
