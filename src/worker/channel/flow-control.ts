import type { Readable, Writable } from 'node:stream'
import type { Channel } from './channel.ts'

/**
 * A queue of a client's input for a target in the sandbox: a process or a connection. The target may not be open yet,
 * or may read slowly.
 */
type Inbox<T> = {
  /**
   * Runs `act` on the target. While the target is not open, the calls wait in order. `bytes` is the size of the data
   * that `act` keeps in memory.
   */
  deliver(bytes: number, act: (to: T) => void): void
  /** Sets the open target and runs the waiting actions. */
  open(to: T): void
  /** Writes to a stream of the target. Pauses the client while the stream has too much unwritten data. */
  write(stream: Writable, data: Buffer): void
  /** Drops the waiting input and resumes the client. */
  close(): void
}

/**
 * Above this much waiting input in one session, the channel stops reading from the client. The value is twice the
 * largest frame.
 */
const MAX_WAITING_BYTES = 8 * 1024 * 1024
/** The cost of each waiting message in addition to its bytes, so that many small messages also reach a limit. */
const MESSAGE_COST_BYTES = 1024

/**
 * Creates the inbox of one session. The channel stops reading from the client while too much data waits in this inbox,
 * or in all inboxes together.
 */
export function makeInbox<T>(channel: Channel): Inbox<T> {
  let end: { readonly to: T } | null = null
  let isClosed = false
  let early: ((to: T) => void)[] = []
  let earlyBytes = 0
  let release: (() => void) | null = null
  const watched = new WeakSet<Writable>()
  const counted = new Set<() => void>()

  const hold = (): void => {
    release ??= channel.pauseInput()
  }
  const letGo = (): void => {
    release?.()
    release = null
  }

  const count = (bytes: number): (() => void) => {
    const uncount = channel.trackInput(bytes)
    const over = (): void => {
      counted.delete(over)
      uncount()
    }
    counted.add(over)
    return over
  }
  const uncountAll = (): void => {
    for (const over of counted) over()
  }

  return {
    deliver(bytes, act) {
      if (isClosed) return
      if (end !== null) {
        act(end.to)
        return
      }
      count(bytes)
      early.push(act)
      earlyBytes += bytes + MESSAGE_COST_BYTES
      if (earlyBytes > MAX_WAITING_BYTES) hold()
    },
    open(to) {
      end = { to }
      letGo()
      uncountAll()
      for (const act of early) act(to)
      early = []
    },
    write(stream, data) {
      stream.write(data, count(data.length))
      if (stream.writableLength <= MAX_WAITING_BYTES) return
      hold()
      if (watched.has(stream)) return
      watched.add(stream)
      for (const event of ['drain', 'close', 'error'] as const) stream.on(event, letGo)
    },
    close() {
      isClosed = true
      early = []
      letGo()
      uncountAll()
    },
  }
}

/**
 * A queue of data for the client. The queue has no limit of its own. Before sending much data, a sender therefore
 * checks `canWrite`. If it is false, the sender waits for a callback. Callbacks run in order, so a busy session can't
 * starve the others.
 */
type Outbox = {
  send(buffers: readonly Buffer[]): void
  readonly canWrite: boolean
  /** What is queued, with a cost for each message. */
  readonly queuedBytes: number
  whenCanWrite(callback: () => void): void
  /** Drops the waiting callbacks and sends nothing more. */
  close(): void
}

/** Creates an outbox over a stream. `onDrain` is called whenever the stream has written all queued data. */
export function makeOutbox(stream: Writable, onDrain: () => void): Outbox {
  let waiting: (() => void)[] = []
  let isOpen = true
  let messages = 0
  const onWritten = (): void => {
    messages -= 1
    if (messages === 0) onDrain() // the stream tells only if it was full, by its bytes
  }
  const isWritable = (): boolean => isOpen && !stream.writableNeedDrain
  stream.on('drain', () => {
    onDrain()
    while (isWritable()) {
      const callback = waiting.shift()
      if (callback === undefined) return
      callback()
    }
  })
  return {
    send(buffers) {
      if (!isOpen || stream.destroyed || stream.writableEnded) return
      messages += 1
      stream.cork()
      for (const [index, buffer] of buffers.entries())
        stream.write(buffer, index === buffers.length - 1 ? onWritten : undefined)
      stream.uncork()
    },
    get canWrite() {
      return isWritable()
    },
    get queuedBytes() {
      return stream.writableLength + messages * MESSAGE_COST_BYTES
    },
    whenCanWrite(callback) {
      if (isWritable()) callback()
      else if (isOpen) waiting.push(callback)
    },
    close() {
      isOpen = false
      waiting = []
    },
  }
}

/**
 * A limit on the data that a client has sent and the sandbox has not yet taken. Above the limit, the client is paused.
 */
type InputBudget = {
  /**
   * Adds a message of `bytes` to the data on its way into the sandbox, with a cost of its own. The returned function subtracts it again;
   * further calls of it do nothing.
   */
  add(bytes: number): () => void
  /** Resumes the client. */
  close(): void
}

/**
 * Creates a budget. When more than `maxBytes` are on their way, it calls `hold`, which pauses the client and returns a
 * function that resumes it. The client is resumed at half of `maxBytes`.
 */
export function makeInputBudget(hold: () => () => void, maxBytes: number): InputBudget {
  let bytes = 0
  let release: (() => void) | null = null

  const letGo = (): void => {
    release?.()
    release = null
  }
  return {
    add(messageBytes) {
      const more = messageBytes + MESSAGE_COST_BYTES
      let isCounted = true
      bytes += more
      if (bytes > maxBytes) release ??= hold()
      return () => {
        if (!isCounted) return
        isCounted = false
        bytes -= more
        if (bytes <= maxBytes / 2) letGo()
      }
    },
    close: letGo,
  }
}

/**
 * Calls `send` with the data of a stream until the stream ends or is destroyed. Data that accumulates while the client
 * is slow, or within one turn of the event loop, is sent together. While the client is slow, the stream's own buffer
 * fills and stops its writer. Never rejects, because the owner of the stream reports its failure.
 */
export function sendStream(channel: Channel, stream: Readable, send: (data: Buffer) => void): Promise<void> {
  return new Promise((resolve) => {
    let isWaiting = false
    const sendPending = (): void => {
      isWaiting = false
      const data: unknown = stream.read()
      if (data instanceof Buffer) send(data)
    }
    const waitForTurn = (): void => {
      channel.whenCanSend(sendPending)
    }
    stream.on('readable', () => {
      if (isWaiting) return
      isWaiting = true
      setImmediate(waitForTurn)
    })
    stream.on('error', (error) => {
      channel.log.debug({ error }, 'a stream of a command channel broke')
    })
    stream.on('close', resolve)
    stream.on('end', resolve)
    if (stream.readableEnded || stream.destroyed) resolve() // a short process may end before anyone listens
  })
}
