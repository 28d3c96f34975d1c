import type { Readable, Writable } from 'node:stream'
import type { Channel } from './channel.ts'

/** What a client sends to something in the sandbox that may not be there yet, or be slow to take it. */
type Inbox<T> = {
  /** Does something with the other end: now, or in order once it is there. `bytes` is what keeping it costs. */
  deliver(bytes: number, act: (to: T) => void): void
  /** The other end is there: what waited is done. */
  open(to: T): void
  /** Writes into the other end's stream. Stops the client while that has too much to take. */
  write(stream: Writable, data: Buffer): void
  /** Nothing is done any more, and the client isn't stopped any more. */
  close(): void
}

/** Input that waits beyond this makes the channel stop reading; two of the largest frames. */
const MAX_WAITING_BYTES = 8 * 1024 * 1024
/** What a message that waits counts besides its bytes, so that empty ones add up too. */
const MESSAGE_COST_BYTES = 1024

/** An inbox of one session; the channel stops reading while this or all of its inboxes hold more than their limit. */
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
    const uncount = channel.trackInput(bytes + MESSAGE_COST_BYTES)
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
 * The way to the client. What is sent is queued without a limit of its own, so whoever has much to say asks `hasCapacity`
 * and waits for its turn; the waiters' order makes a busy session leave room for the others.
 */
type Outbox = {
  send(buffers: readonly Buffer[]): void
  readonly canWrite: boolean
  readonly queuedBytes: number
  whenCanWrite(turn: () => void): void
  /** Forgets the waiters; sends nothing more. */
  close(): void
}

/** An outbox over a stream. `onDrain` is called whenever the stream has taken what was queued. */
export function makeOutbox(stream: Writable, onDrain: () => void): Outbox {
  let waiting: (() => void)[] = []
  let isOpen = true
  const hasRoom = (): boolean => isOpen && !stream.writableNeedDrain
  stream.on('drain', () => {
    onDrain()
    while (hasRoom()) {
      const turn = waiting.shift()
      if (turn === undefined) return
      turn()
    }
  })
  return {
    send(buffers) {
      if (!isOpen || stream.destroyed || stream.writableEnded) return
      stream.cork()
      for (const buffer of buffers) stream.write(buffer)
      stream.uncork()
    },
    get canWrite() {
      return hasRoom()
    },
    get queuedBytes() {
      return stream.writableLength
    },
    whenCanWrite(turn) {
      if (hasRoom()) turn()
      else if (isOpen) waiting.push(turn)
    },
    close() {
      isOpen = false
      waiting = []
    },
  }
}

/** Counts data on their way into a sandbox, and stops the client while there are too many. */
type InputBudget = {
  /** Counts bytes until the function that it returns is called, which may be repeated. */
  add(bytes: number): () => void
  /** The client is stopped no more for what was counted. */
  close(): void
}

/** More than `maxBytes` stop the client by `hold`, which answers how to let it go on, until there are half as many. */
export function makeInputBudget(hold: () => () => void, maxBytes: number): InputBudget {
  let bytes = 0
  let release: (() => void) | null = null

  const letGo = (): void => {
    release?.()
    release = null
  }
  return {
    add(more) {
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
 * Sends what a stream gives until it ends or is destroyed. What gathers while the client is slow, or within one turn of
 * the event loop, goes out together; the stream's own buffer limit then stops who writes to it. Never rejects: of a
 * stream that breaks off, its owner tells.
 */
export function sendStream(channel: Channel, stream: Readable, send: (data: Buffer) => void): Promise<void> {
  return new Promise((resolve) => {
    let isWaiting = false
    const turn = (): void => {
      isWaiting = false
      const data: unknown = stream.read()
      if (data instanceof Buffer) send(data)
    }
    const takeTurn = (): void => {
      channel.whenCanSend(turn)
    }
    stream.on('readable', () => {
      if (isWaiting) return
      isWaiting = true
      setImmediate(takeTurn)
    })
    stream.on('error', (error) => {
      channel.log.debug({ err: error }, 'what a command channel carries broke off')
    })
    stream.on('close', resolve)
    stream.on('end', resolve)
    if (stream.readableEnded || stream.destroyed) resolve() // a short process ends before anybody listens
  })
}
