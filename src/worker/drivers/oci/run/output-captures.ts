import type { Socket } from 'node:net'
import type { RunId } from '../../../../domain/ids.ts'
import type { Clock } from '../../../../lib/clock.ts'
import type { Log } from '../../../../lib/log.ts'
import type { LogStream, SandboxLogs } from '../../../logs/logs.ts'
import { isAlive, sendSignal, type ProcessIdentity } from '../../../processes/process-identity.ts'
import type { OciRunRecord, OciRunRecords } from './run-records.ts'
import { openPipeToRead, workloadPipes } from './workload-pipes.ts'

/** Reads what workloads write and puts it into their sandboxes' logs. */
export type OutputCaptures = {
  /** Begins with a run whose shim was started; one that is read already goes on. */
  begin(run: CapturedRun): void
  /**
   * For a run that is over: reads what is left of its output, waiting for at most `DRAIN_MS`, and lets its shim go.
   * May be repeated; then it waits for the same.
   */
  finish(record: OciRunRecord): Promise<void>
  forget(run: RunId): void
  /** Stops reading; the workloads go on, and what they write waits for the next worker. */
  close(): void
}

export type CapturedRun = Pick<OciRunRecord, 'run_id' | 'sandbox_id'> & { readonly shim: ProcessIdentity | null }

export type CapturesDeps = {
  readonly records: Pick<OciRunRecords, 'folderOf'>
  readonly bootId: string
  readonly logs: Pick<SandboxLogs, 'writerOf'>
  readonly clock: Clock
  readonly log: Log
}

/** How long the end of a run may wait for its last output. Source: issue 4, item 3. */
export const DRAIN_MS = 1_000
/** A workload that writes without end gets this much of the worker's attention: 32 MiB a second. */
const PACE_MS = 50
const PACE_BYTES = (32 * 1024 * 1024 * PACE_MS) / 1000

type Capture = {
  readonly pipes: readonly Pipe[]
  readonly shim: ProcessIdentity | null
  finishing: Promise<void> | null
}
type Pipe = { readonly socket: Socket; readonly stream: LogStream; readonly closed: Promise<void> }

/** Nothing is read yet. */
export function makeOutputCaptures({ records, bootId, logs, clock, log }: CapturesDeps): OutputCaptures {
  const captures = new Map<RunId, Capture>()

  const begin = ({ run_id, sandbox_id, shim }: CapturedRun): void => {
    if (captures.has(run_id)) return
    const writer = logs.writerOf(sandbox_id)
    const paths = workloadPipes(records.folderOf(run_id))
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
      log.warn({ error }, "a workload's output broke off")
    })
    return { socket, stream, closed }
  }
  const drain = async ({ pipes, shim }: Capture): Promise<void> => {
    if (shim !== null && isAlive(shim)) sendSignal(-shim.pid, 'SIGKILL') // it alone still holds the pipes
    for (const { socket } of pipes) socket.resume()
    const limit = new AbortController()
    const over = clock.sleep(DRAIN_MS, limit.signal).catch((error: unknown) => {
      if (!limit.signal.aborted) throw error
    })
    await Promise.race([Promise.all(pipes.map(({ closed }) => closed)), over])
    limit.abort(new Error('all was read'))
    for (const { socket } of pipes) socket.destroy()
    await Promise.all(pipes.map(({ closed }) => closed))
  }

  return {
    begin,
    async finish(record) {
      const { run_id, started, boot_id, outcome } = record
      const shim = started?.shim ?? null
      // A pipe that nobody holds any more is empty, and would never be seen to end.
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

/** Counts what was read, and holds a socket that had its share until the next share is due. */
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
