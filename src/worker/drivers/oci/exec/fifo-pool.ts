import { closeSync, constants, mkdtempSync, openSync, unlinkSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import type { Log } from '../../../../lib/log.ts'
import { runCommand } from '../../../../lib/run-command.ts'

/**
 * Pipes for a process's streams. Node's own are UNIX sockets, which a program can't reopen: `echo x > /dev/stdout`
 * fails with ENXIO (runtime-notes 4.5). Node can't make FIFOs either, so `mkfifo` makes them, a batch ahead of need.
 */
export type FifoPool = {
  /** A pipe whose other end is in this process. The caller settles it once the child has opened its end, or never will. */
  takePipe(direction: 'to-child' | 'from-child'): Promise<Pipe>
  /** The folder of the FIFOs; only root may enter. */
  readonly folder: string
}

export type Pipe = {
  readonly socket: Socket
  /** Where the child opens its end, which never waits; gone once it is settled. */
  readonly path: string
  /** Lets go of the name, and of what stood for the child's end. */
  closeChildEnd(): void
}

/** FIFOs made by one run of `mkfifo`, which takes 2 ms whatever their number (2026-11): enough for eight processes. */
const BATCH = 24
const LOW_WATER = 12
const MKFIFO_TIMEOUT_MS = 10_000
/** What is read from a process before the client has taken it; four kernel pipes. */
const READ_BUFFER_BYTES = 256 * 1024

/** A pool in a folder of its own beneath `parent`, which starts to fill at once. */
export function makeFifoPool(parent: string, log: Log): FifoPool {
  const folder = mkdtempSync(join(parent, 'exec-'))
  const ready: string[] = []
  let made = 0
  let refill: Promise<void> | null = null

  const makeBatch = async (): Promise<void> => {
    const paths = Array.from({ length: BATCH }, (_, index) => join(folder, `fifo-${String(made + index)}`))
    made += BATCH
    // Everybody may open it who has it: the folder keeps others out, and a process in the container that changed its
    // user must still be able to reopen its /dev/stdout.
    await runCommand('mkfifo', ['-m', '666', ...paths], { timeoutMs: MKFIFO_TIMEOUT_MS })
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
      log.warn({ err: error }, 'FIFOs for commands could not be made ahead') // who needs one tries again, and fails
    })
  }

  fillAhead()
  return {
    folder,
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

/** Opens our end, which doesn't block, and one that stands for the child's: without it, ours would be at its end. */
function openPipe(path: string, direction: 'to-child' | 'from-child'): Pipe {
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
