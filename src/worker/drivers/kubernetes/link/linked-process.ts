import { Readable, Writable } from 'node:stream'
import { makePieceQueue } from '../../../../lib/streams/piece-queue.ts'
import { applyLatest } from '../../../../lib/turns/apply-latest.ts'
import { makeSignalQueue } from '../../../../lib/turns/signal-queue.ts'
import type { GuestProcess } from '../../../channel/guest.ts'

/** A process that the agent in a sandbox started, as the messages about it change it. */
export type LinkedProcess = {
  readonly guestProcess: GuestProcess
  /** Handles a message about the process. False if it breaks the protocol. */
  receive(type: string, fields: Buffer): boolean
  /** Ends everything of the process, because the connection is lost. */
  lose(): void
}

type LinkedProcessInput = {
  readonly pid: number
  readonly hasTty: boolean
  /** Sends a message about the process to the agent. */
  readonly send: (type: string, fields?: Buffer) => void
  /** Resolves when the connection takes more, or is lost. */
  readonly drained: () => Promise<void>
  /** Called once nothing more is to come. */
  readonly onOver: () => void
}

/** How many bytes of input may be on their way. The agent's own limit of output is the same. */
const WINDOW_BYTES = 1024 * 1024
const INPUT_PIECE_BYTES = 256 * 1024
const [STDOUT, STDERR] = [1, 2]

/** Makes the streams of a process. A reader that stops reading stops the process, and a process that doesn't read stops the writer. */
export function makeLinkedProcess({ pid, hasTty, send, drained, onOver }: LinkedProcessInput): LinkedProcess {
  const exited = Promise.withResolvers<number>()
  let hasExited = false
  let open = hasTty ? 1 : 2

  const overIfEnded = (): void => {
    if (hasExited && open === 0) onOver()
  }
  const makeOutput = (number: number): Output => {
    const output = makeOutputStream((bytes) => {
      send('A', encode([1, number], [4, bytes]))
    })
    output.stream.once('close', () => {
      // Nobody reads the rest. Without a reader, the process would wait for ever.
      if (!output.hasEnded()) send('D')
      open -= 1
      overIfEnded()
    })
    return output
  }
  const stdout = makeOutput(STDOUT)
  const stderr = hasTty ? null : makeOutput(STDERR)
  const input = makeInputStream(send)
  const end = (code: number): void => {
    hasExited = true
    exited.resolve(code)
    overIfEnded()
  }
  const resize = applyLatest(async ({ rows, cols }: { readonly rows: number; readonly cols: number }) => {
    send('R', encode([2, rows], [2, cols]))
    await drained()
  })
  const signal = makeSignalQueue(async (number) => {
    if (!hasExited) send('K', encode([4, number]))
    await drained()
  })
  return {
    guestProcess: {
      pid,
      stdin: input.stream,
      stdout: stdout.stream,
      stderr: stderr?.stream ?? null,
      resize(rows, cols) {
        resize({ rows, cols })
      },
      signal,
      exited: exited.promise,
    },
    receive(type, fields) {
      switch (type) {
        case 'O':
          return stdout.receive(fields)
        case 'E':
          return stderr?.receive(fields) ?? false
        case 'A':
          return fields.length === 4 && input.acknowledge(fields.readUInt32BE(0))
        case 'C':
          input.close()
          return true
        case 'X':
          if (fields.length !== 4) return false
          end(fields.readInt32BE(0))
          return true
        default:
          return false
      }
    },
    lose() {
      input.close()
      stdout.receive(Buffer.alloc(0))
      stderr?.receive(Buffer.alloc(0))
      end(-1)
    },
  }
}

type Output = {
  readonly stream: Readable
  /** Takes a piece; no bytes mean the end. False if the agent sent more than it may. */
  receive(data: Buffer): boolean
  hasEnded(): boolean
}

function makeOutputStream(allow: (bytes: number) => void): Output {
  const unread = makePieceQueue()
  let read = 0
  let allowed = WINDOW_BYTES
  let isOver = false
  let isWanted = false
  const pushUnread = (): void => {
    const pushed = unread.take()
    read += pushed.length
    isWanted = false
    if (pushed.length > 0) stream.push(pushed)
    if (isOver) stream.push(null)
  }
  const stream = new Readable({
    highWaterMark: 1, // what comes before somebody reads is joined in `unread`
    read: () => {
      isWanted = true
      if (read > 0 && !isOver) {
        allowed += read
        allow(read)
        read = 0
      }
      if (unread.bytes > 0) pushUnread()
    },
    destroy: (error, done) => {
      unread.take()
      done(error)
    },
  })
  return {
    stream,
    receive(data) {
      if (isOver || stream.destroyed) return true
      allowed -= data.length
      if (allowed < 0) return false
      isOver = data.length === 0
      unread.add(data)
      if (isWanted || (isOver && unread.bytes === 0)) pushUnread()
      return true
    },
    hasEnded: () => isOver,
  }
}

type Input = {
  readonly stream: Writable
  /** The agent wrote so many bytes to the process. False if they were never sent. */
  acknowledge(bytes: number): boolean
  /** The process takes no more input. */
  close(): void
}

function makeInputStream(send: LinkedProcessInput['send']): Input {
  let unacknowledged = 0
  let written: (() => void) | null = null
  const stream = new Writable({
    write: (data: Buffer, _encoding, done) => {
      unacknowledged += data.length
      for (let at = 0; at < data.length; at += INPUT_PIECE_BYTES) send('I', data.subarray(at, at + INPUT_PIECE_BYTES))
      if (unacknowledged < WINDOW_BYTES) done()
      else written = done
    },
    final: (done) => {
      send('I')
      done()
    },
  })
  // The process may end at any time, also while nobody listens.
  stream.on('error', () => undefined)
  return {
    stream,
    acknowledge(bytes) {
      unacknowledged -= bytes
      if (unacknowledged < 0) return false
      if (unacknowledged < WINDOW_BYTES) {
        const done = written
        written = null // before the call, which may write again at once
        done?.()
      }
      return true
    },
    close() {
      if (!stream.destroyed) stream.destroy(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }))
    },
  }
}

/** Encodes unsigned numbers, each with its size in bytes. */
function encode(...numbers: readonly (readonly [size: 1 | 2 | 4, value: number])[]): Buffer {
  return Buffer.concat(
    numbers.map(([size, value]) => {
      const field = Buffer.alloc(size)
      field.writeUIntBE(value, 0, size)
      return field
    }),
  )
}
