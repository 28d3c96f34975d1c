import type { Socket } from 'node:net'
import type { RunId } from '../../../../domain/ids.ts'
import { type Clock, waitAtMost } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { LogStream, SandboxLogs } from '../../../logs/logs.ts'
import { isAlive, sendSignal, type ProcessIdentity } from '../../../processes/process-identity.ts'
import type { OciRunRecord, OciRunRecords } from './run-records.ts'
import { openPipeToRead, workloadPipes } from './workload-pipes.ts'

/** Reads the output of workloads and writes it to their sandboxes' logs. */
export type OutputCaptures = {
  /** Starts to read the output of a run whose shim was started. Does nothing if the output is already being read. */
  begin(run: CapturedRun): void
  /**
   * Reads the rest of an ended run's output for at most `DRAIN_MS`, and kills the run's shim. A second call for the
   * same run waits for the first.
   */
  finish(record: OciRunRecord): Promise<void>
  forget(run: RunId): void
  /** Stops reading. Workloads keep running, and their output stays in the pipes for the next worker process. */
  close(): void
}

/** A run whose output is read. */
export type CapturedRun = Pick<OciRunRecord, 'run_id' | 'sandbox_id'> & { readonly shim: ProcessIdentity | null }

type OutputCapturesDeps = {
  readonly records: Pick<OciRunRecords, 'containerFolderOf'>
  readonly bootId: string
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}

/** How long the report of a run's end may wait for the run's last output. */
export const DRAIN_MS = 1_000
/** Each stream of a workload may be read at 32 MiB per second. This is the interval in which the limit is enforced. */
const PACE_MS = 50
const PACE_BYTES = (32 * 1024 * 1024 * PACE_MS) / 1000

type Capture = {
  readonly pipes: readonly Pipe[]
  readonly shim: ProcessIdentity | null
  finishing: Promise<void> | null
}
type Pipe = { readonly socket: Socket; readonly stream: LogStream; readonly closed: Promise<void> }

/** Creates the output captures of a worker. They read no run's output yet. */
export function makeOutputCaptures({ records, bootId, logs, clock, log }: OutputCapturesDeps): OutputCaptures {
  const captures = new Map<RunId, Capture>()

  const begin = ({ run_id, sandbox_id, shim }: CapturedRun): void => {
    if (captures.has(run_id)) return
    const writer = logs.writerOf(sandbox_id)
    const paths = workloadPipes(records.containerFolderOf(run_id))
    const pipes: Pipe[] = []
    captures.set(run_id, { pipes, shim, finishing: null })
    try {
      for (const source of ['stdout', 'stderr'] as const)
        pipes.push(read(openPipeToRead(paths[source]), writer.stream(source)))
    } catch (error) {
      log.warn({ run_id, error }, "a workload's output can't be read")
    }
  }
  const read = (socket: Socket, stream: LogStream): Pipe => {
    const pace = makePace(clock, socket)
    const closed = new Promise<void>((resolve) => {
      socket.once('close', () => {
        stream.end()
        resolve()
      })
    })
    socket.on('data', (data) => {
      stream.write(data)
      pace(data.length)
    })
    socket.on('error', (error) => {
      log.warn({ error }, "reading a workload's output failed")
    })
    return { socket, stream, closed }
  }
  const drain = async ({ pipes, shim }: Capture): Promise<void> => {
    if (shim !== null && isAlive(shim)) sendSignal(-shim.pid, 'SIGKILL') // only the shim still holds the pipes open
    for (const { socket } of pipes) socket.resume()
    const allClosed = Promise.all(pipes.map(({ closed }) => closed))
    await waitAtMost(clock, DRAIN_MS, allClosed)
    for (const { socket } of pipes) socket.destroy()
    await allClosed
  }

  return {
    begin,
    async finish(record) {
      const { run_id, started, boot_id, outcome } = record
      const shim = started?.shim ?? null
      // Without a live shim, no process holds the pipe open. The pipe is then empty, and a reader would never see its
      // end.
      const isUnread = !captures.has(run_id) && outcome === null && boot_id === bootId
      if (isUnread && shim !== null && isAlive(shim)) begin({ ...record, shim })
      const capture = captures.get(run_id)
      if (capture === undefined) return
      capture.finishing ??= drain(capture)
      await capture.finishing
    },
    forget(run) {
      captures.delete(run)
    },
    close() {
      for (const { pipes } of captures.values()) {
        for (const { socket, stream } of pipes) {
          const left: unknown = socket.read()
          if (left instanceof Buffer) stream.write(left)
          socket.destroy()
        }
      }
    },
  }
}

/**
 * Returns a function that counts the bytes read from a socket. When they reach the limit of an interval, the socket is
 * paused until the next interval.
 */
function makePace(clock: Clock, socket: Socket): (bytes: number) => void {
  let fromMs = clock.monotonicMs()
  let bytesRead = 0
  return (bytes) => {
    const nowMs = clock.monotonicMs()
    if (nowMs - fromMs >= PACE_MS) {
      fromMs = nowMs
      bytesRead = 0
    }
    bytesRead += bytes
    if (bytesRead < PACE_BYTES) return
    socket.pause()
    void clock.sleep(fromMs + PACE_MS - nowMs).then(() => socket.resume())
  }
}
