import type { LogEntry, LogLine, LogQuery } from '../../contract/streams/log-protocol.ts'

/**
 * The number of characters that are collected before they are sent as one chunk. A shorter chunk is sent when no
 * further entry is available.
 */
const CHUNK_CHARACTERS = 64 * 1024

/**
 * Encodes entries as the lines of `log-protocol.ts`, with the end line last. Entries that are available at the same
 * time are sent together.
 */
export async function* encodeLogLines(
  entries: AsyncIterable<LogEntry>,
  { follows }: Pick<LogQuery, 'follows'>,
): AsyncGenerator<string> {
  const source = entries[Symbol.asyncIterator]()
  try {
    let piece = ''
    for (;;) {
      if (piece.length >= CHUNK_CHARACTERS) {
        yield piece
        piece = ''
      }
      const next = source.next()
      if (piece !== '' && !(await isThere(next))) {
        yield piece
        piece = ''
      }
      const { value, done } = await next
      if (done === true) break
      piece += encodeLine(value)
    }
    yield piece + encodeLine({ end: follows ? 'ended' : 'complete' })
  } finally {
    await source.return?.()
  }
}

function encodeLine(line: LogLine): string {
  return `${JSON.stringify(line)}\n`
}

/** Whether a promise settles before the next turn of the event loop. */
async function isThere(next: Promise<unknown>): Promise<boolean> {
  const later = new Promise<false>((resolve) => setImmediate(resolve, false))
  return await Promise.race([
    next.then(
      () => true,
      () => false,
    ),
    later,
  ])
}
