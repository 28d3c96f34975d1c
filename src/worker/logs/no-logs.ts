import type { LogWriter, SandboxLogs } from './logs.ts'

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
