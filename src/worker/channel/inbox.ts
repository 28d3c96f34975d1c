import type { Writable } from 'node:stream'
import type { Channel } from './channel.ts'

/** What a client sends to something in the sandbox that may not be there yet, or be slow to take it. */
export type Inbox<T> = {
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
