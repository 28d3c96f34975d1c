import type { Clock } from '../../lib/clock.ts'
import type { LogSource } from '../../contract/streams/log-protocol.ts'
import type { LogStream } from './logs.ts'

export type OutputSource = Exclude<LogSource, 'system'>

type OutputStreamDeps = {
  readonly clock: Pick<Clock, 'sleep' | 'monotonicMs'>
  /** Whether the next line may be kept. It is asked for each line. */
  readonly mayKeep: () => boolean
  readonly keep: (text: string) => void
  /** Told how many bytes were not kept. */
  readonly lose: (bytes: number) => void
  readonly onEnd: () => void
}

const LINE_FEED = 0x0a
/** How long a line may be unfinished before it is kept as it is: a prompt has no line feed. */
const UNFINISHED_MS = 250

/** A stream of output that becomes lines. What may not be kept is only counted, which costs next to nothing. */
export function makeOutputStream({ clock, mayKeep, keep, lose, onEnd }: OutputStreamDeps): LogStream {
  let isWaiting = false
  let heldSinceMs = 0
  const cutter = makeLineSplitter((text) => {
    if (!mayKeep()) return false
    keep(text)
    return true
  })
  const loseSome = (bytes: number): void => {
    if (bytes > 0) lose(bytes)
  }
  /** One wait at a time, however many lines begin in it. Never rejects. */
  const waitForRest = async (): Promise<void> => {
    isWaiting = true
    while (cutter.holdsText) {
      const leftMs = heldSinceMs + UNFINISHED_MS - clock.monotonicMs()
      if (leftMs <= 0) loseSome(cutter.flush())
      else await clock.sleep(leftMs)
    }
    isWaiting = false
  }
  return {
    write(data) {
      if (data.length === 0) return
      if (!mayKeep()) {
        loseSome(cutter.end())
        lose(data.length)
        return
      }
      if (!cutter.holdsText || data.includes(LINE_FEED)) heldSinceMs = clock.monotonicMs()
      loseSome(cutter.write(data))
      if (!isWaiting && cutter.holdsText) void waitForRest()
    },
    end() {
      loseSome(cutter.end())
      onEnd()
    },
  }
}

/** The most bytes of a line that become one entry; what follows is the next one. Source: issue 4, item 3. */
export const MAX_LINE_BYTES = 16 * 1024

/**
 * Cuts a stream of bytes into lines. A character that is split over chunks stays whole; bytes that are no UTF-8 become
 * U+FFFD. It holds at most one line of `MAX_LINE_BYTES`.
 */
type LineSplitter = {
  /** Takes bytes, and answers how many are gone: those of a line that was refused and all behind it. */
  write(chunk: Buffer): number
  /** Gives the unfinished line, but for a character of which bytes are missing; answers how many were refused. */
  flush(): number
  /** Gives all that is left; answers how many were refused. */
  end(): number
  /** Whether `flush` would give something. */
  readonly holdsText: boolean
}

const NOTHING = Buffer.alloc(0)

/** `keep` gets each line with its line feed, and answers whether it took it. */
export function makeLineSplitter(keep: (text: string) => boolean): LineSplitter {
  let held: Buffer = NOTHING

  const giveUpTo = (end: number): number => {
    const isKept = end === 0 || keep(held.toString('utf8', 0, end))
    held = held.subarray(end)
    return isKept ? 0 : end
  }
  return {
    write(chunk) {
      const data = held.length === 0 ? chunk : Buffer.concat([held, chunk])
      held = NOTHING
      let from = 0
      for (;;) {
        const feed = data.indexOf(LINE_FEED, from)
        const isLong = (feed === -1 ? data.length : feed + 1) - from > MAX_LINE_BYTES
        if (feed === -1 && !isLong) break
        const end = isLong ? endOfCharacters(data, from, from + MAX_LINE_BYTES) : feed + 1
        if (!keep(data.toString('utf8', from, end))) return data.length - from
        from = end
      }
      held = Buffer.from(data.subarray(from)) // a copy: the chunk may be part of something large
      return 0
    },
    flush: () => giveUpTo(endOfCharacters(held, 0, held.length)),
    end: () => giveUpTo(held.length),
    get holdsText() {
      return endOfCharacters(held, 0, held.length) > 0
    },
  }
}

/** Where the last character ends that is whole before `end`; `end` itself for bytes that are no UTF-8. */
function endOfCharacters(data: Buffer, from: number, end: number): number {
  for (let start = end - 1; start >= from && start >= end - 4; start--) {
    const byte = data[start] ?? 0
    if ((byte & 0b1100_0000) === 0b1000_0000) continue
    return start + lengthOfCharacter(byte) > end ? start : end
  }
  return end
}

function lengthOfCharacter(first: number): number {
  if (first >= 0xf0 && first <= 0xf4) return 4
  if (first >= 0xe0) return first <= 0xef ? 3 : 1
  return first >= 0xc2 ? 2 : 1
}
