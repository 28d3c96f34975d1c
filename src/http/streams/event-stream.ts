import { Readable } from 'node:stream'

/** A proxy between may neither keep nor hold back what is told as it happens (HTML, "Server-sent events"; nginx). */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
} as const

/** A comment, which readers of events skip. */
const KEEP_ALIVE = ': keep-alive\n\n'
/** How much is taken ahead of a slow reader, in bytes. */
const BUFFER_BYTES = 64 * 1024

/**
 * Texts of whole events as the body of a reply, taken at the reader's pace. A comment opens it, so that the reader has its
 * headers at once, and others follow whenever nothing was said for `keepAliveMs`: they keep proxies from giving up, and
 * show a reader that has gone.
 */
export function openEventStream(
  texts: AsyncIterable<string>,
  { keepAliveMs }: { readonly keepAliveMs: number },
): Readable {
  let isQuiet = true
  async function* spoken(): AsyncGenerator<string> {
    try {
      yield KEEP_ALIVE
      for await (const text of texts) {
        isQuiet = false
        yield text
      }
    } finally {
      clearInterval(timer)
    }
  }
  const stream = Readable.from(spoken(), { objectMode: false, highWaterMark: BUFFER_BYTES })
  const timer = setInterval(() => {
    if (isQuiet && stream.readableLength === 0) stream.push(KEEP_ALIVE)
    isQuiet = true
  }, keepAliveMs)
  stream.once('close', () => {
    clearInterval(timer)
  })
  return stream
}
