import { closeSync, constants, openSync, unlinkSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import type { Log } from '../../../../lib/log.ts'
import type { HostCommands } from '../../../processes/system-calls.ts'

/**
 * A worker's pool of FIFOs for the streams of processes in its containers. Node's own pipes are UNIX sockets, which a program can't
 * reopen: `echo x > /dev/stdout` would fail with ENXIO. Node can't create FIFOs, so a helper creates batches of them in advance. Each
 * is used once.
 */
export type FifoPool = {
  /**
   * Returns a pipe from the pool whose other end is in this process. Call `closeChildEnd` once the child has opened its
   * end or has failed to start.
   */
  takePipe(direction: 'to-child' | 'from-child'): Promise<ChildPipe>
}

type ChildPipe = {
  readonly socket: Socket
  /** The path at which the child opens its end without blocking. Valid until `closeChildEnd`. */
  readonly path: string
  /** Deletes the path, and closes the descriptor that kept the child's end open. */
  closeChildEnd(): void
}

/** The number of FIFOs in one batch, enough for 32 processes: a burst of starts must not wait for the next one. */
const BATCH = 96
const LOW_WATER = 48
const TIMEOUT_MS = 10_000
/**
 * Nothing is read before a client wants it. What waits stays in the pipe, where the kernel joins it: 64 KiB in single bytes would take 33
 * MiB here (2026-11).
 */
const READ_BUFFER_BYTES = 1

/** Creates a pool and starts to fill it. `folder` must be its own, and only root may enter it. */
export function makeFifoPool(
  folder: string,
  { commands, log }: { readonly commands: Pick<HostCommands, 'callSystem'>; readonly log: Log },
): FifoPool {
  const ready: string[] = []
  let made = 0
  let refill: Promise<void> | null = null

  const makeBatch = async (): Promise<void> => {
    const paths = Array.from({ length: BATCH }, (_, index) => join(folder, `fifo-${String(made + index)}`))
    made += BATCH
    // Any user may open them: a process in the container must be able to reopen its /dev/stdout after it changed its user.
    // Other users of the host can't enter the folder.
    await commands.callSystem(['fifos', ...paths], { timeoutMs: TIMEOUT_MS })
    ready.push(...paths)
  }
  const fill = (): Promise<void> => {
    refill ??= makeBatch().finally(() => {
      refill = null
    })
    return refill
  }

  const fillAhead = (): void => {
    fill().catch((error: unknown) => {
      log.warn({ error }, 'creating FIFOs for commands failed') // the next `takePipe` tries again, and rejects
    })
  }

  fillAhead()
  return {
    async takePipe(direction) {
      for (;;) {
        const path = ready.shift()
        if (path !== undefined) {
          if (ready.length < LOW_WATER) fillAhead()
          return openPipe(path, direction)
        }
        await fill()
      }
    },
  }
}

/**
 * Opens both ends of a pipe without blocking. This process keeps the child's end open until the child has opened it.
 * Otherwise our end would report the end of the stream before the child starts.
 */
function openPipe(path: string, direction: 'to-child' | 'from-child'): ChildPipe {
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const writer = openSync(path, constants.O_WRONLY | constants.O_NONBLOCK)
  const [ours, theirs] = direction === 'from-child' ? [reader, writer] : [writer, reader]
  const isOutput = direction === 'from-child'
  const options = { fd: ours, readable: isOutput, writable: !isOutput, readableHighWaterMark: READ_BUFFER_BYTES }
  return {
    socket: new Socket(options),
    path,
    closeChildEnd() {
      closeSync(theirs)
      unlinkSync(path)
    },
  }
}
