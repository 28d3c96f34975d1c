import { Readable } from 'node:stream'

/** Headers that keep proxies, such as nginx, from caching or delaying events. */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
} as const

/** A comment, which clients ignore. */
const KEEP_ALIVE = ': keep-alive\n\n'
/** How many bytes are buffered for a slow reader. */
const BUFFER_BYTES = 64 * 1024

/**
 * Creates the body of an event stream. `texts` are read at the client's pace, and each text contains whole events. The
 * body begins with a comment, so that the client gets the headers at once. Another comment follows after each
 * `keepAliveMs` of silence. The comments keep proxies from closing the stream, and detect a reader that has gone.
 */
export function openEventStream(
  texts: AsyncIterable<string>,
  { keepAliveMs }: { readonly keepAliveMs: number },
): Readable {
  async function* withComments(): AsyncGenerator<string> {
    try {
      yield KEEP_ALIVE
      for await (const text of texts) {
        if (!stream.destroyed) timer.refresh()
        yield text
      }
    } finally {
      clearTimeout(timer)
    }
  }
  const stream = Readable.from(withComments(), { objectMode: false, highWaterMark: BUFFER_BYTES })
  const timer = setTimeout(() => {
    if (stream.readableLength === 0) stream.push(KEEP_ALIVE)
    timer.refresh()
  }, keepAliveMs)
  stream.once('close', () => {
    clearTimeout(timer)
  })
  return stream
}
