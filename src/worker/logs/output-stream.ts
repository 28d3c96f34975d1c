import type { Clock } from '../../lib/clock.ts'
import type { LogSource } from '../../contract/streams/log-protocol.ts'
import type { LogStream } from './logs.ts'

export type OutputSource = Exclude<LogSource, 'system'>

type OutputStreamDeps = {
  readonly clock: Pick<Clock, 'sleep' | 'monotonicMs'>
  /** Whether the next line may be written to the log. Called for each line. */
  readonly mayKeep: () => boolean
  readonly keep: (text: string) => void
  /** Called with the number of bytes that were dropped. */
  readonly lose: (bytes: number) => void
  readonly onEnd: () => void
}

const LINE_FEED = 0x0a
/** How long a line may stay unfinished before it is written anyway. A prompt, for example, has no line feed. */
const UNFINISHED_MS = 250

/**
 * Creates a stream that splits output into lines and passes them to `keep`. Output that may not be kept is only
 * counted, which takes almost no processor time.
 */
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
  /**
   * Waits `UNFINISHED_MS` for the rest of a line, then writes the unfinished line. Only one call runs at a time. Never
   * rejects.
   */
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

/** The maximum size of an entry. A longer line becomes several entries. */
export const MAX_LINE_BYTES = 16 * 1024

/**
 * Splits a byte stream into lines. Characters that are split over chunks are joined, and invalid UTF-8 becomes U+FFFD.
 * Keeps at most one line of `MAX_LINE_BYTES` in memory.
 */
type LineSplitter = {
  /**
   * Accepts bytes and emits the complete lines. Returns the number of dropped bytes: the bytes of a refused line and
   * all bytes after it.
   */
  write(chunk: Buffer): number
  /** Emits the unfinished line, except for an incomplete character. Returns the number of dropped bytes. */
  flush(): number
  /** Emits all remaining bytes. Returns the number of dropped bytes. */
  end(): number
  /** Whether `flush` would emit a line. */
  readonly holdsText: boolean
}

const NOTHING = Buffer.alloc(0)

/** Creates a line splitter. `keep` receives each line with its line feed, and returns whether it kept the line. */
export function makeLineSplitter(keep: (text: string) => boolean): LineSplitter {
  let held: Buffer = NOTHING

  const emitUpTo = (end: number): number => {
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
      held = Buffer.from(data.subarray(from)) // a copy, because the chunk may be part of a large buffer
      return 0
    },
    flush: () => emitUpTo(endOfCharacters(held, 0, held.length)),
    end: () => emitUpTo(held.length),
    get holdsText() {
      return endOfCharacters(held, 0, held.length) > 0
    },
  }
}

/** The end of the last complete character before `end`. For invalid UTF-8 it is `end` itself. */
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
