import type { Clock } from '../../lib/clock.ts'
import type { LogSource } from '../../contract/streams/log-protocol.ts'
import { makeLineSplitter } from './line-splitter.ts'
import type { LogStream } from './logs.ts'

export type OutputSource = Exclude<LogSource, 'system'>

export type OutputStreamDeps = {
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
