import type { LogEntry, LogQuery, LogSource } from '../../contract/streams/log-protocol.ts'
import type { SandboxId } from '../../domain/ids.ts'

/**
 * The logs of the sandboxes that ran on this worker, stored on its disk. A log contains the output of the sandbox's
 * processes, and lines from the worker about its runs. Each log has a size limit, beyond which its oldest entries are
 * deleted. After the last run, a log is kept for a configured time.
 */
export interface SandboxLogs {
  /** Returns the writer of a sandbox's log. Repeated calls return the same writer. */
  writerOf(sandbox: SandboxId): LogWriter
  /**
   * Reads the entries that match a query. The caller may stop at any time. Without `follows`, reading stops at the
   * current end of the log. With `follows`, it stops when no run is open (`LogWriter.closeRun`) and all entries are
   * read. A sandbox without a log has no entries.
   */
  read(sandbox: SandboxId, query: LogQuery, signal: AbortSignal): AsyncIterable<LogEntry>
  /** Whether a run of the sandbox is open here. */
  isLive(sandbox: SandboxId): boolean
  /** Deletes a sandbox's log. A missing log is fine. */
  discard(sandbox: SandboxId): Promise<void>
  /** Writes all pending records and closes all files. */
  close(): Promise<void>
}

/**
 * Writes to a sandbox's log. Its methods never fail and never wait. Output that can't be stored is dropped, and a
 * `system` entry reports the number of dropped bytes.
 */
export interface LogWriter {
  /** Marks that a run has started or was adopted. Following readers then wait for new entries. May be repeated. */
  openRun(): void
  /** Marks that the run has ended. Following readers stop after they have read all entries. May be repeated. */
  closeRun(): void
  /** Writes a line from the worker. Pass it without a line feed. */
  system(text: string): void
  /** Opens a stream for output, which is split into lines. `end` writes an unfinished last line. */
  stream(source: Exclude<LogSource, 'system'>): LogStream
}

export type LogStream = { write(data: Buffer): void; end(): void }

/** Creates the `SandboxLogs` of a worker without logs. It drops all writes, and reads return no entries. */
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
