import { Readable } from 'node:stream'

/** Headers that keep proxies, such as nginx, from caching or delaying events. */
export const EVENT_STREAM_HEADERS = {
  'content-type': 'text/event-stream',
  'cache-control': 'no-cache, no-transform',
  'x-accel-buffering': 'no',
} as const

/** A comment, which clients ignore. */
const KEEP_ALIVE = ': keep-alive\n\n'
/** The most bytes to buffer for a slow reader. */
const BUFFER_BYTES = 64 * 1024

/**
 * Creates a reply body from events. It is read at the reader's pace, and each text contains whole events. It begins
 * with a comment, so that the reader gets the headers at once. It sends another comment after `keepAliveMs` of silence.
 * The comments keep proxies from closing the stream, and detect a reader that has gone.
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
