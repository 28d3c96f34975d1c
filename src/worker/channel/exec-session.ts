import type { Readable } from 'node:stream'
import type { Channel } from './channel.ts'
import { failedPayload } from './exec-payloads.ts'
import { ExecFailure } from './guest.ts'
import type { GuestExec, GuestProcess } from './guest.ts'
import { errnoOf } from './errno.ts'

/** One process of a client, from its request to its terminal message. */
export type ExecSession = {
  /** Input for the process; none means end of input. Nothing happens after the end. */
  write(data: Buffer): void
  resize(rows: number, cols: number): void
  signal(signal: number): void
  /** The client is gone: kills the process group and lets go of its streams. */
  kill(): void
  /** Resolves after the terminal message was queued, or after `kill` once the process was reaped. */
  readonly over: Promise<void>
}

/** Input that waits for the process beyond this makes the channel stop reading; two of the largest frames. */
const MAX_WAITING_INPUT_BYTES = 8 * 1024 * 1024
/** What a message that waits for the process's start counts besides its bytes, so that empty ones add up too. */
const MESSAGE_COST_BYTES = 1024

const SIGKILL = 9

/**
 * Starts a process and carries its streams. Messages that arrive before it runs are kept, within a limit. The exit is
 * told only after both outputs ended and the process was reaped, so that nothing follows it (section 7.2).
 */
export function startExecSession(channel: Channel, id: number, request: GuestExec): ExecSession {
  let child: GuestProcess | null = null
  let isKilled = false
  let hasEnded = false
  let early: ((child: GuestProcess) => void)[] = []
  let earlyBytes = 0
  let release: (() => void) | null = null

  const releaseInput = (): void => {
    release?.()
    release = null
  }
  const whenRunning = (bytes: number, act: (child: GuestProcess) => void): void => {
    if (hasEnded || isKilled) return
    if (child !== null) {
      act(child)
      return
    }
    early.push(act)
    earlyBytes += bytes + MESSAGE_COST_BYTES
    if (earlyBytes > MAX_WAITING_INPUT_BYTES) release ??= channel.holdInput()
  }

  const write = (to: GuestProcess, data: Buffer): void => {
    const { stdin } = to
    if (stdin.destroyed || stdin.writableEnded) return
    if (data.length > 0) {
      stdin.write(data)
      if (stdin.writableLength > MAX_WAITING_INPUT_BYTES) release ??= channel.holdInput()
    } else if (request.tty === null) {
      stdin.end() // a terminal has no end of input
    }
  }

  const adopt = (started: GuestProcess): void => {
    child = started
    let hasToldError = false
    started.stdin.on('drain', releaseInput)
    started.stdin.on('close', releaseInput)
    started.stdin.on('error', (error) => {
      releaseInput()
      if (hasToldError || hasEnded || isKilled) return
      hasToldError = true
      channel.send(id, 'core.exec.stdin.error', { ...errnoOf(error), message: error.message })
    })
    channel.send(id, 'core.exec.started', { pid: started.pid })
    releaseInput()
    for (const act of early) act(started)
    early = []
  }

  const discard = (process: GuestProcess): void => {
    process.signal(SIGKILL)
    process.stdin.destroy()
    process.stdout.destroy()
    process.stderr?.destroy()
  }

  const run = async (): Promise<void> => {
    try {
      const started = await channel.guest.exec(request)
      if (isKilled) {
        discard(started)
        await started.exited
        return
      }
      adopt(started)
      const outputs = [
        pump(channel, started.stdout, (data) => {
          channel.sendData(id, 'core.exec.stdout', data)
        }),
      ]
      if (started.stderr !== null) {
        outputs.push(
          pump(channel, started.stderr, (data) => {
            channel.sendData(id, 'core.exec.stderr', data)
          }),
        )
      }
      await Promise.all(outputs)
      const code = await started.exited
      hasEnded = true
      started.stdin.destroy()
      channel.send(id, 'core.exec.exited', { code })
    } catch (error) {
      if (!(error instanceof ExecFailure)) channel.log.error({ err: error }, 'a process could not be started')
      channel.send(id, 'core.exec.failed', failedPayload(error))
    } finally {
      hasEnded = true
      early = []
      releaseInput()
    }
  }

  return {
    over: run(),
    write(data) {
      whenRunning(data.length, (to) => {
        write(to, data)
      })
    },
    resize(rows, cols) {
      whenRunning(0, (to) => {
        to.resize(rows, cols)
      })
    },
    signal(signal) {
      whenRunning(0, (to) => {
        to.signal(signal)
      })
    },
    kill() {
      isKilled = true
      if (child !== null && !hasEnded) discard(child)
    },
  }
}

/**
 * Sends what a stream gives until it ends or is destroyed. What gathers while the client is slow, or within one turn of
 * the event loop, goes out together; the stream's own buffer limit then stops the process.
 */
function pump(channel: Channel, stream: Readable, send: (data: Buffer) => void): Promise<void> {
  return new Promise((resolve) => {
    let isWaiting = false
    const turn = (): void => {
      isWaiting = false
      const data: unknown = stream.read()
      if (data instanceof Buffer) send(data)
    }
    const takeTurn = (): void => {
      channel.whenRoom(turn)
    }
    stream.on('readable', () => {
      if (isWaiting) return
      isWaiting = true
      setImmediate(takeTurn)
    })
    stream.on('error', (error) => {
      channel.log.debug({ err: error }, 'the output of a process broke off')
    })
    stream.on('close', resolve)
    stream.on('end', resolve)
    if (stream.readableEnded || stream.destroyed) resolve() // a short process ends before anybody listens
  })
}
